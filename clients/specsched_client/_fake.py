"""A transport without a wire, for tests of code that uses a client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from specsched_client._errors import UnsupportedError
from specsched_client._methods import Method

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

Handler = Callable[[Any], Iterable[Any]]
"""Request to responses; an exception it raises is what the client sees."""


class FakeTransport:
    """Answers calls with functions: RPC name ("Generate") -> handler.

    Give it to `Client` as it is, to `AsyncClient` as `FakeTransport(...).as_async()`. `requests`
    holds (RPC name, request) of every call.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = dict(handlers)
        self.requests: list[tuple[str, Message]] = []

    def unary(self, method: Method[Q, R], request: Q, timeout_s: float | None) -> R:
        """The first response of the handler."""
        return next(self.stream(method, request, timeout_s))

    def stream(
        self,
        method: Method[Q, R],
        request: Q,
        timeout_s: float | None,  # noqa: ARG002 - a fake answers at once
    ) -> Generator[R, None, None]:
        """The responses of the handler."""
        name = method.path.rpartition("/")[2]
        self.requests.append((name, request))
        if name not in self._handlers:
            raise UnsupportedError(f"the fake has no handler for {name}")
        yield from self._handlers[name](request)

    def close(self) -> None:
        """Nothing to close."""

    def as_async(self) -> AsyncFakeTransport:
        """The same for asyncio."""
        return AsyncFakeTransport(self)


class AsyncFakeTransport:
    """A `FakeTransport` that awaits."""

    def __init__(self, fake: FakeTransport) -> None:
        self._fake = fake

    async def unary(self, method: Method[Q, R], request: Q, timeout_s: float | None) -> R:
        """The first response of the handler."""
        return self._fake.unary(method, request, timeout_s)

    async def stream(
        self, method: Method[Q, R], request: Q, timeout_s: float | None
    ) -> AsyncGenerator[R, None]:
        """The responses of the handler."""
        for response in self._fake.stream(method, request, timeout_s):
            yield response

    async def close(self) -> None:
        """Nothing to close."""
