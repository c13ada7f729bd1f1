"""Messages between two processes over a socket pair: pickled, each behind its length in bytes."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any, Final, Self

__all__ = ["Channel"]

_LENGTH: Final = struct.Struct("!I")
_MAX_READ_BYTES: Final = 1 << 16


class Channel:
    """One end. One thread may read beside one that writes.

    Methods raise OSError where the other end is gone.
    """

    def __init__(self, end: socket.socket) -> None:
        """end: of a connected stream socket that blocks; it is closed with this."""
        self._socket = end
        self._read = bytearray()
        self._num_wanted = 0
        """Bytes that have to be there before it is worth looking: up to the end of a message."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The other end reads what was sent, then the end."""
        self._socket.close()

    def fileno(self) -> int:
        """To wait on."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send all of it, however long that takes."""
        self._socket.sendall(_packed(message))

    def send_at_once(self, message: Any) -> memoryview | None:
        """Send what there is room for; returns what is left, to be given to `send_rest` first."""
        data = _packed(message)
        try:
            num_sent = self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            num_sent = 0
        return memoryview(data)[num_sent:] if num_sent < len(data) else None

    def send_rest(self, rest: memoryview) -> None:
        """Send what `send_at_once` left, however long that takes."""
        self._socket.sendall(rest)

    def receive(self) -> list[Any]:
        """Wait for a message; returns all that have come whole. Raises EOFError at the end."""
        while not (messages := self._take(self._socket.recv(_MAX_READ_BYTES))):
            pass
        return messages

    def receive_at_once(self) -> list[Any]:
        """What has come whole, of some 64 KiB at most. Raises EOFError at the end."""
        try:
            return self._take(self._socket.recv(_MAX_READ_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return []

    def _take(self, data: bytes) -> list[Any]:
        if not data:
            raise EOFError
        self._read += data
        messages: list[Any] = []
        if len(self._read) < self._num_wanted:
            return messages
        begin, self._num_wanted = 0, 0
        with memoryview(self._read) as view:
            while len(view) - begin >= _LENGTH.size:
                end = begin + _LENGTH.size + _LENGTH.unpack_from(view, begin)[0]
                if end > len(view):
                    self._num_wanted = end - begin
                    break
                with view[begin + _LENGTH.size : end] as packed:
                    messages.append(pickle.loads(packed))  # noqa: S301 - our own other half
                begin = end
        del self._read[:begin]
        return messages


def _packed(message: Any) -> bytes:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data
