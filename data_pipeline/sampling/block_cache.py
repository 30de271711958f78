"""Caches the blocks in use. Each is built once, outside any lock; the next one can be built in the background."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

from .block import Block


class BlockCache:
    """Keeps the ``capacity`` blocks that were asked for last.

    The first caller builds a block; others that want the same one wait. Other blocks stay available meanwhile. An error
    is raised in every waiting caller, but not cached: the next call builds the block again.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()  # guards the fields below
        self._failed: set[Hashable] = set()  # blocks whose last build failed: only get() tries again
        self._blocks: OrderedDict[Hashable, Future[Block]] = OrderedDict()

    def get(self, key: Hashable, build: Callable[[], Block]) -> Block:
        """Returns the block; calls ``build`` if it is not cached."""
        future, is_mine = self._claim(key)
        if is_mine:
            self._fill(key, future, build)
        return future.result()

    def fetch_ahead(self, key: Hashable, build: Callable[[], Block]) -> None:
        """Starts building the block in the background if it is not cached, and returns at once.

        A block whose build failed is not tried again here: otherwise every batch would try.
        """
        with self._lock:
            if key in self._failed:
                return
        future, is_mine = self._claim(key)
        if is_mine:
            thread = threading.Thread(target=self._fill, args=(key, future, build), name="block ahead", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system allows no more threads
                self._fill(key, future, build)

    def _claim(self, key: Hashable) -> tuple[Future[Block], bool]:
        """Returns the block's future, and whether the caller is the one who must fill it."""
        with self._lock:
            is_new = key not in self._blocks
            if is_new:
                self._blocks[key] = Future()
                if len(self._blocks) > self.capacity:
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(key)
            return self._blocks[key], is_new

    def _fill(self, key: Hashable, future: Future[Block], build: Callable[[], Block]) -> None:
        try:
            future.set_result(build())
            with self._lock:
                self._failed.discard(key)
        except BaseException as error:  # otherwise waiting callers would wait for ever
            with self._lock:
                self._failed.add(key)
                if self._blocks.get(key) is future:
                    del self._blocks[key]
            future.set_exception(error)
