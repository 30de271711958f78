"""The copy of a remote corpus on this node: the manifest at once, tokenizer and shards where they are needed."""

import hashlib
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from data_pipeline.core.errors import KinspanError
from data_pipeline.core.files import sync
from data_pipeline.core.progress import show_progress

from .cache import LOCK, OPENING, PART, ROOM, CacheSettings, Entry, lock_file, open_cache, pin, pin_fetched
from .store import BadAnswer, Store, Unavailable

FETCHES = 4  # shards that a process fetches at a time
BAR_DELAY = 2.0  # seconds that fetching takes at least for a bar
MOST_TOKENIZER_BYTES = 1 << 27
TOKENIZER_ATTEMPTS = 3
# A store over HTTP cannot list its files: those that a tokenizer may have, the one that each has first.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
)


class Mirror:
    """A remote corpus, and the folder in the node's cache that is filled with its files.

    The folder is named by the manifest's content: where the corpus is prepared anew at the same address, it is another
    one, and nothing of the former is used.

    Args:
        url:      the corpus's address
        settings: of the node's cache
        read:     reads the manifest in a folder, which messages call by the name that follows; raises BadAnswer where
                  it is damaged, as an answer can be
        most:     bytes of the manifest at most

    Raises KinspanError where the store cannot be read, or there is no corpus.
    """

    def __init__(self, url: str, settings: CacheSettings, read: Callable[[Path, str], Any], most: int) -> None:
        self.store, self.cache = Store(url), open_cache(settings)
        self.manifest: Any = None
        with tempfile.TemporaryDirectory(prefix=OPENING, dir=self.cache.root) as temporary:
            target = Path(temporary) / "manifest.json"

            def check(path: Path) -> None:
                self.manifest = read(path.parent, self.store.name)

            self.store.fetch(target.name, target, most, check)
            digest = hashlib.sha256(target.read_bytes()).hexdigest()
            name = re.sub(r"[^\w.-]", "_", self.store.name.rpartition("/")[2])
            self.folder = self.cache.root / f"{name}-{digest[:16]}" / "corpus"
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder.parent / "control").mkdir(exist_ok=True)
            target.replace(self.folder / target.name)  # with the same content, where another process was first

    def holds(self, file: str) -> bool:
        """Whether a shard is in the cache now."""
        return (self.folder / file).is_file()

    def drop(self, file: str) -> None:
        """Take a shard out of the cache, because it was damaged there."""
        (self.folder / file).unlink(missing_ok=True)

    def pin(self, file: str, size: int, check: Callable[[Path], None], mark: Callable[[Path], None]) -> int:
        """Open a shard, fetched where it is not there, and keep it in the cache until the descriptor is closed.

        Of the node's processes that need it one fetches it, and the others wait. ``check`` raises BadAnswer where what
        was fetched is not the shard, and ``mark`` is told the place of one that passed.
        """
        entry = Entry(self.folder, file)
        while True:
            handle = pin(entry, size)
            if handle is not None:
                return handle
            with lock_file(entry.control(LOCK)):
                if not entry.path.is_file() or entry.path.stat().st_size != size:
                    handle = self._fetch(entry, size, check)
                    mark(entry.path)
                    return handle

    def _fetch(self, entry: Entry, size: int, check: Callable[[Path], None]) -> int:
        """Fetch a shard under another name, and give it its own once it is whole, checked and on the disk."""
        part, room = entry.control(PART), entry.control(ROOM)
        room.unlink(missing_ok=True)  # of a process that was killed
        self.cache.make_room(entry, size)
        try:
            self.store.fetch(entry.file, part, size, check)
            sync(part)
            entry.path.parent.mkdir(parents=True, exist_ok=True)
            return pin_fetched(entry)
        finally:
            part.unlink(missing_ok=True)
            room.unlink(missing_ok=True)

    def fetch_tokenizer(self, check: Callable[[Path], None]) -> Path:
        """The folder of the corpus's tokenizer, fetched where it is not there, again where ``check`` refuses it."""
        folder, partial = self.folder / "tokenizer", self.folder.parent / "tokenizer.part"
        with lock_file(self.folder.parent / f"tokenizer{LOCK}"):
            for number in range(1, TOKENIZER_ATTEMPTS + 1):
                if folder.is_dir():
                    break
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                self._fetch_tokenizer_files(partial)
                try:
                    check(partial)
                    partial.rename(folder)
                except KinspanError as error:
                    if number == TOKENIZER_ATTEMPTS:
                        raise
                    print(f"{self.store.name}/tokenizer: {error}; fetching it again", file=sys.stderr, flush=True)
        return folder

    def _fetch_tokenizer_files(self, folder: Path) -> None:
        for name in TOKENIZER_FILES:
            try:
                self.store.fetch(f"tokenizer/{name}", folder / name, MOST_TOKENIZER_BYTES, _check_not_empty)
            except Unavailable:
                if name == TOKENIZER_FILES[0]:
                    raise


def _check_not_empty(path: Path) -> None:
    if not path.stat().st_size:
        raise BadAnswer("it sends an empty file")


def map_ahead(get: Callable[[int], Any], sizes: dict[int, int], task: str) -> dict[int, Any]:
    """``get(number)`` for each key of ``sizes``, a few at a time, with a bar of their bytes where somebody waits.

    In threads that do not keep a program from ending. The first error is raised at once.
    """
    waiting, done = SimpleQueue[int](), SimpleQueue[tuple[int, Any, BaseException | None]]()
    for number in sizes:
        waiting.put(number)

    def work() -> None:
        with suppress(Empty):
            while True:
                number = waiting.get_nowait()
                try:
                    done.put((number, get(number), None))
                except BaseException as error:
                    done.put((number, None, error))
                    return

    for _ in range(min(FETCHES, len(sizes))):
        threading.Thread(target=work, name="shards", daemon=True).start()
    found: dict[int, Any] = {}
    somebody_waits = threading.current_thread() is threading.main_thread() and int(os.environ.get("RANK", "0")) == 0
    more: dict[str, Any] = {"unit_scale": True, "delay": BAR_DELAY, "leave": False}
    with show_progress(task, "B", total=sum(sizes.values()), quiet=not somebody_waits, **more) as bar:
        while len(found) < len(sizes):
            number, value, error = done.get()
            if error:
                with suppress(Empty):
                    while True:
                        waiting.get_nowait()
                raise error
            found[number] = value
            bar.update(sizes[number])
    return found
