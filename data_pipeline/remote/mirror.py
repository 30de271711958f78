"""Copies a remote corpus to this node: the manifest at once, tokenizer and shards when they are needed."""

import hashlib
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from data_pipeline.core.errors import DamagedFile
from data_pipeline.core.files import hash_file, hold_lock
from data_pipeline.core.progress import show_progress
from data_pipeline.core.settings import CacheSettings
from data_pipeline.manifest import read_manifest

from .cache import LOCK, open_cache
from .store import Store

Fetched = TypeVar("Fetched")
FETCHES = 4  # shards that a process fetches at a time
BAR_DELAY = 2.0  # seconds of fetching before a bar is shown
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")  # named here, because HTTP cannot list a folder


class Mirror:
    """Fills a folder in the node's cache with the files of a remote corpus.

    The folder is named by the manifest's content: a corpus prepared anew at the same address gets another folder.
    """

    def __init__(self, url: str, settings: CacheSettings) -> None:
        self.store, self.cache = Store(url), open_cache(settings)
        incoming = self.cache.root / f"opening-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
        with hold_lock(incoming.with_suffix(LOCK)):
            incoming.mkdir(exist_ok=True)
            path = incoming / "manifest.json"
            self.store.fetch(path.name, path, lambda _: read_manifest(incoming, self.store.name))
            self.manifest = read_manifest(incoming, self.store.name)
            name = re.sub(r"[^\w.-]", "_", self.store.name.rpartition("/")[2])
            self.folder = self.cache.root / f"{name}-{hash_file(path)[:16]}"
            self.folder.mkdir(exist_ok=True)
            path.replace(self.folder / path.name)

    def fetch_tokenizer(self, check: Callable[[Path], None]) -> Path:
        """Returns the folder of the corpus's tokenizer, fetched if it is missing; ``check`` raises for a bad one."""
        folder, part = self.folder / "tokenizer", self.folder / "tokenizer.part"
        with hold_lock(self.folder / f"tokenizer{LOCK}"):
            if not folder.is_dir():
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                for name in TOKENIZER_FILES:
                    self.store.fetch(f"tokenizer/{name}", part / name, _check_not_empty)
                check(part)
                part.rename(folder)
        return folder


def _check_not_empty(path: Path) -> None:
    if not path.stat().st_size:
        raise DamagedFile(f"{path.name} is empty")


def fetch_all(get: Callable[[int], Fetched], sizes: dict[int, int], task: str) -> dict[int, Fetched]:
    """Returns ``get(number)`` for each shard number of ``sizes`` (bytes), FETCHES at a time, with a progress bar.

    The threads are daemons, so that a slow store does not keep a program from ending.
    """
    results: dict[int, Fetched] = {}
    errors: list[BaseException] = []
    numbers = iter(sizes)  # shared: each thread takes the next one

    def work() -> None:
        for number in numbers:
            try:
                results[number] = get(number)
            except BaseException as error:
                errors.append(error)
            if errors:
                return
            bar.update(sizes[number])

    quiet = threading.current_thread() is not threading.main_thread()  # in the thread that prepares the next block
    total = sum(sizes.values())
    with show_progress(task, "B", total=total, quiet=quiet, unit_scale=True, delay=BAR_DELAY, leave=False) as bar:
        threads = [threading.Thread(target=work, name="shards", daemon=True) for _ in range(min(FETCHES, len(sizes)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return results
