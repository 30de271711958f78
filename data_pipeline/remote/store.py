"""Files of a remote folder (S3, HTTP, whatever fsspec reads): fetched whole and checked, or named."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from errno import EDQUOT, ENOSPC, EROFS
from pathlib import Path
from typing import Any

import fsspec
from fsspec.callbacks import Callback

from data_pipeline.core.errors import KinspanError, quote_error

from .address import show_address

STALL_SECONDS = 60.0  # without a byte: the attempt has failed
WAITS = (1, 2, 4, 8, 16, 32, 60, 60)  # seconds between attempts, three minutes in all
REFUSED = (401, 403, 404, 410)  # statuses of HTTP that another attempt would not change
OWN_DISK = (ENOSPC, EDQUOT, EROFS)  # errors of the disk that is written to, and not of the store


class BadAnswer(Exception):
    """A store sent something else than it should."""


class Unavailable(KinspanError):
    """A store has no file of that name, or does not give it."""


class Store:
    """A remote folder.

    Args:
        url: its address; what fsspec needs beside it (endpoints, credentials) comes from the environment

    Raises KinspanError where the address cannot be read, or the library that reads it is not installed.
    """

    def __init__(self, url: str) -> None:
        self.name = show_address(url.rstrip("/"))
        if "?" in url or "#" in url:
            raise KinspanError(f"{self.name}: the address of a corpus is that of a folder, without ? and #")
        protocol = url.partition("://")[0]
        try:
            self.fs, root = fsspec.core.url_to_fs(url, **_choose_options(protocol))
        except ImportError as error:
            raise KinspanError(
                f"{self.name}: {protocol}:// needs a library that is not installed ({quote_error(error)}): "
                "pip install 'kinspan[remote]' brings those of s3, http and https"
            ) from error
        except ValueError as error:
            raise KinspanError(f"{self.name} cannot be read: {quote_error(error)}") from error
        self.root = str(root).rstrip("/")

    def fetch(self, file: str, target: Path, most: int, check: Callable[[Path], None]) -> None:
        """Write the folder's file to ``target``, and try again, at growing intervals, where that fails.

        ``check`` raises BadAnswer where what was written is not the file, which may have ``most`` bytes. Raises
        Unavailable where there is no such file or it is refused. What is not whole is removed.
        """
        place = f"{self.name}/{file}"
        for number, wait in enumerate((*WAITS, None), 1):
            try:
                self._download(f"{self.root}/{file}", target, most)
                check(target)
                return
            except BaseException as error:
                target.unlink(missing_ok=True)
                reason = _explain(error, place)
                if not threading.main_thread().is_alive():
                    raise  # the program ends, and has closed its connections
            if wait is None:
                raise KinspanError(
                    f"{place} could not be fetched in {number} attempts ({reason}): mend the store or the network, "
                    "and start it again"
                )
            print(f"{place}: {reason}; trying again in {wait:g} s", file=sys.stderr, flush=True)
            time.sleep(wait)

    def _download(self, path: str, target: Path, most: int) -> None:
        """One attempt. Stores that fsspec reads asynchronously, as s3 and http, are given up once nothing comes."""
        received = _Received(most)
        if not self.fs.async_impl:
            self.fs.get_file(path, str(target), callback=received)
            return
        answer = self.fs._get_file(path, str(target), callback=received)
        task = asyncio.run_coroutine_threadsafe(answer, self.fs.loop)
        while True:
            try:
                return task.result(timeout=min(1.0, STALL_SECONDS / 4))
            except TimeoutError:
                if task.done():
                    raise
            if time.monotonic() - received.last > STALL_SECONDS:
                task.cancel()
                raise BadAnswer(f"it has sent nothing for {STALL_SECONDS:g} s")


class _Received(Callback):
    """Notes when bytes came last, and raises BadAnswer where more come than there should be."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.last = most, time.monotonic()

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        if inc:
            self.last = time.monotonic()
        if self.value > self.most:
            raise BadAnswer(f"it sends more than {self.most:,} bytes")


def _choose_options(protocol: str) -> dict[str, Any]:
    """What fsspec's file system of a protocol is made with.

    A large shard may take longer than the five minutes that aiohttp gives a whole answer. Botocore's own attempts would
    multiply with those here.
    """
    if protocol in ("http", "https"):
        from aiohttp import ClientTimeout

        return {"client_kwargs": {"timeout": ClientTimeout(total=None, sock_connect=STALL_SECONDS)}}
    if protocol in ("s3", "s3a"):
        timeouts = {"connect_timeout": STALL_SECONDS, "read_timeout": STALL_SECONDS}
        return {"config_kwargs": {**timeouts, "retries": {"total_max_attempts": 1}}}
    return {}


def _explain(error: BaseException, place: str) -> str:
    """Why an attempt failed, for another one. Raises what another attempt would not change."""
    if isinstance(error, BadAnswer):
        return str(error)
    own = isinstance(error, KinspanError) or (isinstance(error, OSError) and error.errno in OWN_DISK)
    if own or not isinstance(error, Exception):
        raise error
    if isinstance(error, FileNotFoundError):
        raise Unavailable(f"{place} is missing: mend the address, or copy the corpus there again") from error
    if isinstance(error, ValueError) or "ParamValidation" in type(error).__name__:
        raise KinspanError(f"{place} is no address that can be read ({_quote(error)})") from error
    status = getattr(error, "status", None)
    if isinstance(error, PermissionError) or status in REFUSED or "Credentials" in type(error).__name__:
        raise Unavailable(f"{place} is refused ({_quote(error)}): check the address and the credentials") from error
    return f"{type(error).__name__}: {_quote(error)}"


def _quote(error: BaseException) -> str:
    """The library's text, in which an address may hold a password."""
    return show_address(quote_error(error))
