"""Sends one request after the other and records what each experienced."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specsched_client._async_client import AsyncClient
from specsched_client._errors import ConnectionFailedError, SpecschedError
from specsched_client._sampling import Sampling
from specsched_client._types import Delta

from .records import RequestRecord

__all__ = ["Sender", "SteadyTimes", "Workload"]


@dataclass(frozen=True, slots=True)
class SteadyTimes:
    """settle_s: from when every user has its first token to the window. window_s: its length."""

    settle_s: float
    window_s: float

    def start_s(self, ready_s: float) -> float:
        """When the window begins, for users that had their first tokens at `ready_s`."""
        return ready_s + self.settle_s

    def end_s(self, ready_s: float) -> float:
        """When it ends."""
        return self.start_s(ready_s) + self.window_s


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of a round: request i has prompt i, wrapping around, seed `seed + i` or none.

    Seeded answers are repeatable, at temperatures above 0 at the price of accepted drafts.
    first_index: where this round begins in that order. steady: of a round that is run as
    `steady.py` does, which has as many requests as it gets to; None: a whole round.
    """

    prompts: Sequence[Sequence[int]]
    num_requests: int
    sampling: Sampling
    seed: int | None = None
    timeout_s: float | None = None
    first_index: int = 0
    steady: SteadyTimes | None = None

    def prompt(self, index: int) -> Sequence[int]:
        """Token ids of request `index` of the round."""
        return self.prompts[(self.first_index + index) % len(self.prompts)]

    def sampling_of(self, index: int) -> Sampling:
        """How request `index` of the round samples."""
        if self.seed is None:
            return self.sampling
        return replace(self.sampling, seed=self.seed + self.first_index + index)


class Sender:
    """Keeps the records of the requests that it sent, in the order in which they ended.

    on_end: called once for each that ended. on_tokens: called for each delta that brought any,
    with the request, the time and the number of tokens.
    """

    def __init__(
        self,
        client: AsyncClient,
        work: Workload,
        on_end: Callable[[], None] = lambda: None,
        on_tokens: Callable[[int, float, int], None] = lambda *_: None,
    ) -> None:
        self._client = client
        self._work = work
        self._on_end = on_end
        self._on_tokens = on_tokens
        self.records: list[RequestRecord] = []

    async def send(
        self, index: int, start_s: float, sampling: Sampling | None = None
    ) -> RequestRecord:
        """Send request `index` and read its answer to the end. sampling: None: as its work says.

        A request that fails is recorded too. Raises ConnectionFailedError where nobody answers any
        more.
        """
        answer = _Answer(index, start_s)
        stream = self._client.stream(
            self._work.prompt(index),
            sampling or self._work.sampling_of(index),
            timeout_s=self._work.timeout_s,
        )
        try:
            async with contextlib.aclosing(stream) as deltas:
                async for delta in deltas:
                    if delta.token_ids:
                        now_s = time.monotonic()
                        answer.add_tokens(now_s, len(delta.token_ids))
                        self._on_tokens(index, now_s, len(delta.token_ids))
                    answer.add(delta)
        except ConnectionFailedError:
            raise
        except SpecschedError as error:
            answer.error = str(error)
        record = answer.record()
        self.records.append(record)
        self._on_end()
        return record


class _Answer:
    """Folds the deltas of a request."""

    def __init__(self, index: int, start_s: float) -> None:
        self._record = RequestRecord(index, start_s, start_s)
        self._num_output_tokens = 0
        self.error: str | None = None

    def add_tokens(self, now_s: float, num_tokens: int) -> None:
        if self._record.first_token_s is None:
            self._record = replace(self._record, first_token_s=now_s, num_first_tokens=num_tokens)
        self._num_output_tokens += num_tokens

    def add(self, delta: Delta) -> None:
        if (whole := delta.completion) is not None:
            self._record = replace(
                self._record,
                num_prompt_tokens=whole.num_prompt_tokens,
                num_verified_tokens=whole.num_draft_tokens,
                num_accepted_tokens=whole.num_accepted_tokens,
                finish_reason=whole.finish_reason,
            )
            if whole.finish_reason == "abort":
                self.error = "the request was aborted before its end"

    def record(self) -> RequestRecord:
        return replace(
            self._record,
            end_s=time.monotonic(),
            num_output_tokens=self._num_output_tokens,
            error=self.error,
        )
