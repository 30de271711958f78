"""The model hub where there is no network: noticed once, not retried for half a minute a file."""

import os
import socket
from functools import cache
from pathlib import Path
from urllib.parse import urlparse


def expect_hub(name_or_dir: str) -> None:
    """Before a name is looked for on the hub: goes offline, where cached files are still found, if it has no address.

    A proxy resolves addresses itself: then nothing is tried.
    """
    if not Path(name_or_dir).is_dir() and not any(os.environ.get(n) for n in ("HTTPS_PROXY", "https_proxy")):
        _go_offline_without_address()


@cache
def _go_offline_without_address() -> None:
    from huggingface_hub import constants

    try:
        socket.getaddrinfo(urlparse(constants.ENDPOINT).hostname, 443)
    except OSError:
        constants.HF_HUB_OFFLINE = True
