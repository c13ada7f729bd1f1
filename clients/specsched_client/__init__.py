"""Client of specsched: generate text with an executor, ask and steer a scheduler.

    from specsched_client import Client, Sampling

    with Client("127.0.0.1:50051") as client:
        for delta in client.stream("The capital of France is", Sampling(max_tokens=20)):
            print(delta.text, end="")

`AsyncClient` has the same methods for asyncio. Names are imported when first used, so that the
command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specsched_client._async_client import AsyncClient
    from specsched_client._client import Client
    from specsched_client._errors import (
        ConnectionFailedError,
        DeadlineExceededError,
        InvalidRequestError,
        MissingDependencyError,
        OverloadedError,
        ServerError,
        SpecschedError,
        UnsupportedError,
    )
    from specsched_client._fake import FakeTransport
    from specsched_client._sampling import Sampling
    from specsched_client._scheduler_client import AsyncSchedulerClient, SchedulerClient
    from specsched_client._types import Completion, Delta, TokenLogprob

__all__ = [
    "AsyncClient",
    "AsyncSchedulerClient",
    "Client",
    "Completion",
    "ConnectionFailedError",
    "DeadlineExceededError",
    "Delta",
    "FakeTransport",
    "InvalidRequestError",
    "MissingDependencyError",
    "OverloadedError",
    "Sampling",
    "SchedulerClient",
    "ServerError",
    "SpecschedError",
    "TokenLogprob",
    "UnsupportedError",
]

_MODULE_OF = {
    "AsyncClient": "_async_client",
    "AsyncSchedulerClient": "_scheduler_client",
    "Client": "_client",
    "Completion": "_types",
    "Delta": "_types",
    "FakeTransport": "_fake",
    "Sampling": "_sampling",
    "SchedulerClient": "_scheduler_client",
    "TokenLogprob": "_types",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF.get(name, '_errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
