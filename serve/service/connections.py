"""Connections that are neither idle nor slow for ever: what uvicorn does not limit by itself."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # in which the first lines of a request must be there
READ_SECONDS, READ_BYTES = 30.0, 1 << 16  # in each such time a caller must take so much of what was sent, or all


class PatientProtocol(H11Protocol):
    """Ends a connection whose request does not come, or whose answer is not read."""

    _head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head = self._end_after(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head = _stop(self._head)
        elif self._head is None:
            self._head = self._end_after(HEAD_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = _stop(self._unread)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()  # which waits until all that was sent is read
        self._unread = self._unread or self._expect_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head, self._unread = _stop(self._head), _stop(self._unread)
        super().connection_lost(exc)

    def _expect_reading(self) -> asyncio.TimerHandle:
        left = self.transport.get_write_buffer_size() - READ_BYTES
        return self.loop.call_later(READ_SECONDS, self._end_unless_read, left)

    def _end_unless_read(self, most: int) -> None:
        """Ends the connection if more than ``most`` bytes are still to be read."""
        if self.transport.get_write_buffer_size() > max(most, 0):
            self.transport.abort()
        else:
            self._unread = self._expect_reading()

    def _end_after(self, seconds: float) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, self.transport.abort)


def _stop(timer: asyncio.TimerHandle | None) -> Any:
    if timer:
        timer.cancel()
