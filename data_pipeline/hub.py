"""The model hub where there is no network: this is noticed once, instead of half a minute of retries per file."""

from functools import cache
from pathlib import Path


def expect_hub(name_or_dir: str) -> None:
    """Switch the hub's library offline where the hub cannot be reached and ``name_or_dir`` is not a folder.

    Offline, files that were downloaded before are still found, and anything else is refused at once. The library
    itself retries each file five times, for which it has no setting.
    """
    if not Path(name_or_dir).is_dir():
        _go_offline_if_unreachable()


def use_cache_alone() -> None:
    """Switch the hub's library offline: another process of this machine has asked the hub already."""
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True


@cache
def _go_offline_if_unreachable() -> None:
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception:  # no address, no route, no answer, offline already: the types are those of its HTTP library
        constants.HF_HUB_OFFLINE = True
