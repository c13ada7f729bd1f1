"""Clients own their connection and close it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from specsched_client._transport import AsyncTransport, Transport

__all__ = ["AsyncConnected", "Connected"]


class Connected:
    """Closed by `close`, or at the end of a `with` block."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


class AsyncConnected:
    """Closed by `close`, or at the end of an `async with` block."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self._transport.close()
