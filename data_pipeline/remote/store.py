"""Fetches and checks files of a remote folder (S3, HTTP, or another that fsspec reads), with retries."""

import logging
import threading
import time
from collections.abc import Callable
from errno import EDQUOT, ENOSPC, EROFS
from pathlib import Path

import fsspec

from data_pipeline.core.errors import DamagedFile, KinspanError, quote_error, redact

log = logging.getLogger(__name__)
STALL_SECONDS = 60.0  # without a byte: then the attempt has failed
WAITS = (1, 2, 4, 8, 16, 32, 60, 60)  # seconds between attempts, three minutes in all
REFUSED = (401, 403, 404, 410)  # HTTP statuses that another attempt would not change
LOCAL_DISK = (ENOSPC, EDQUOT, EROFS)  # errors of the local disk, not of the store


class Store:
    """Reads a remote folder. Endpoints and credentials come from the environment, as fsspec reads them."""

    def __init__(self, url: str) -> None:
        self.name = redact(url.rstrip("/"))
        if "?" in url or "#" in url:
            raise KinspanError(f"{self.name}: the address of a corpus is that of a folder, without ? and #")
        try:
            self.fs, root = fsspec.core.url_to_fs(url, **_choose_options(url.partition("://")[0]))
        except ImportError as error:
            raise KinspanError(f"{self.name}: {quote_error(error)}; kinspan[remote] reads S3 and http") from error
        except ValueError as error:
            raise KinspanError(f"{self.name} cannot be read: {quote_error(error)}") from error
        self.root = str(root).rstrip("/")

    def fetch(self, file: str, target: Path, check: Callable[[Path], object]) -> None:
        """Writes the folder's file to ``target``, with retries at growing intervals.

        ``check`` raises DamagedFile if the fetched content is wrong. Raises KinspanError if there is no such file, it
        is refused, or the last attempt failed.
        """
        address = f"{self.name}/{file}"
        for wait in (*WAITS, None):
            try:
                self.fs.get_file(f"{self.root}/{file}", str(target))
                check(target)
                return
            except Exception as error:
                reason = f"{type(error).__name__}: {quote_error(error)}"
                is_refusal = isinstance(error, KinspanError) and not isinstance(error, DamagedFile)
                if is_refusal or getattr(error, "errno", None) in LOCAL_DISK:
                    raise
                if _is_final(error):
                    raise KinspanError(f"{address} cannot be fetched ({reason})") from error
                if wait is None or not threading.main_thread().is_alive():
                    raise KinspanError(f"{address} could not be fetched despite retries ({reason})") from error
            log.warning("%s: %s; trying again in %g s", address, reason, wait)
            time.sleep(wait)


def _choose_options(protocol: str) -> dict[str, dict]:
    """Returns fsspec's options for a protocol: limits on the wait for data, and no retries by the library itself.

    A large shard may take longer than the five minutes that aiohttp allows for a whole response.
    """
    if protocol in ("http", "https"):
        from aiohttp import ClientTimeout

        timeout = ClientTimeout(total=None, sock_connect=STALL_SECONDS, sock_read=STALL_SECONDS)
        return {"client_kwargs": {"timeout": timeout}}
    if protocol in ("s3", "s3a"):
        timeouts = {"connect_timeout": STALL_SECONDS, "read_timeout": STALL_SECONDS}
        return {"config_kwargs": {**timeouts, "retries": {"total_max_attempts": 1}}}
    return {}


def _is_final(error: Exception) -> bool:
    """Returns whether another attempt would fail in the same way."""
    type_name = type(error).__name__  # botocore's types are not imported for other stores
    final = isinstance(error, FileNotFoundError | PermissionError | ValueError) or "Credentials" in type_name
    return final or "ParamValidation" in type_name or getattr(error, "status", None) in REFUSED
