"""An executor and its scheduler without a wire, whose speed under each policy a test decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from specsched_client import AsyncClient, AsyncSchedulerClient, FakeTransport
from specsched_client.bench import round as bench_round
from specsched_client.bench import sender, steady
from specsched_client.bench.session import Session
from specsched_client.bench.sweep import run as sweep_run
from specsched_protocol.policy_text import policy_text
from specsched_protocol.v1 import plan_pb2, scheduler_pb2

NUM_TOKENS = 4
TARGET = "executor"


class KnownServer:
    """Answers with NUM_TOKENS tokens at `speeds[policy]` tokens a second, one after the other.

    Time is this server's own. noise: standard deviation of a round's logarithmic speed; a round of
    the same title has the same noise always. titles: of the rounds begun. before_request: called
    ahead of every request. policy: the one in force.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, speeds: Mapping[str, float], noise: float = 0.0
    ) -> None:
        self.titles: list[str] = []
        self.before_request: Callable[[], None] = lambda: None
        self.policy = plan_pb2.PolicySpec(name="throughput")
        self._speeds = speeds
        self._noise = noise
        self._now_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: self._now_s)
        for module in (bench_round, sender, steady, sweep_run):
            monkeypatch.setattr(module, "time", clock)

    def session(self) -> Session:
        """Connections to this server."""
        executor = FakeTransport({"Generate": self._generate})
        scheduler = FakeTransport({"GetStatus": self._status, "SetPolicy": self._set_policy})
        return Session(
            {TARGET: AsyncClient(TARGET, transport=executor.as_async())},
            AsyncSchedulerClient("scheduler", transport=scheduler.as_async()),
            self,
        )

    def begin(self, title: str, num_requests: int) -> None:
        """As Progress: a round begins."""
        self.titles.append(title)

    def advance(self) -> None:
        """As Progress: a request ended."""

    def _status(self, request: Any) -> Iterator[Any]:
        yield scheduler_pb2.GetStatusResponse(policy=self.policy)

    def _set_policy(self, request: Any) -> Iterator[Any]:
        self.policy = request.policy
        yield scheduler_pb2.SetPolicyResponse(policy=self.policy)

    def _generate(self, request: pb.GenerateRequest) -> Iterator[Any]:
        self.before_request()
        luck = random.Random(self.titles[-1]).lognormvariate(0, self._noise)
        self._now_s += NUM_TOKENS / (self._speeds[policy_text(self.policy)] * luck)
        yield pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=range(NUM_TOKENS)))
        complete = pb.GenerateComplete(
            output_ids=range(NUM_TOKENS), finish_reason="length", completion_tokens=NUM_TOKENS
        )
        yield pb.GenerateResponse(complete=complete)
