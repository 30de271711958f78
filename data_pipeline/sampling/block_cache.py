"""The blocks in use: each is built once, outside any lock, and the next one while the present one is used."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

from .block import Block


class BlockCache:
    """Keeps the ``capacity`` blocks that were asked for last.

    Whoever asks first for a block builds it, and who asks for it meanwhile waits; other blocks can be had all the time.
    An error is raised by each who asked, and is not kept: who asks later builds the block again.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()  # of the dictionary
        self._failed: set[Hashable] = set()  # blocks that could not be built, and are left to who asks for them
        self._blocks: OrderedDict[Hashable, Future[Block]] = OrderedDict()

    def get(self, key: Hashable, build: Callable[[], Block]) -> Block:
        """Returns the block, which ``build`` makes where it is not there."""
        block, is_mine = self._claim(key)
        if is_mine:
            self._fill(key, block, build)
        return block.result()

    def fetch_ahead(self, key: Hashable, build: Callable[[], Block]) -> None:
        """Have the block built in the background where it is not there, and return at once.

        One that could not be built before is not tried again: it would be at every batch.
        """
        if key in self._failed:
            return
        block, is_mine = self._claim(key)
        if is_mine:
            thread = threading.Thread(target=self._fill, args=(key, block, build), name="block ahead", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system allows no more threads
                self._fill(key, block, build)

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

    def _fill(self, key: Hashable, block: Future[Block], build: Callable[[], Block]) -> None:
        try:
            block.set_result(build())
            self._failed.discard(key)
        except BaseException as error:  # those who wait must not wait for ever
            with self._lock:
                self._failed.add(key)
                if self._blocks.get(key) is block:
                    del self._blocks[key]
            block.set_exception(error)
