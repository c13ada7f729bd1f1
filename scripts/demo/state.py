"""What the demo knows while it runs; the views only read it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from specsched_protocol.v1.scheduler_pb2 import WatchDecisionsResponse

from scripts.demo.prompts import PROMPTS, Prompt

__all__ = ["Answer", "DemoState"]

DECISIONS_KEPT = 60


@dataclass(slots=True)
class Answer:
    """One prompt and what came back so far."""

    prompt: Prompt
    text: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None


@dataclass(slots=True)
class DemoState:
    """The present round and the last decisions."""

    phase: str = "starting"
    policy: str = ""
    answers: list[Answer] = field(default_factory=list)
    decisions: deque[WatchDecisionsResponse] = field(
        default_factory=lambda: deque(maxlen=DECISIONS_KEPT)
    )
    started_s: float = 0.0

    def begin_round(self, policy: str, what: str = "answering") -> None:
        """Empty the answers: the same prompts are asked again under `policy`."""
        self.policy = policy
        self.phase = f"{what} under the policy {policy}"
        self.answers = [Answer(prompt) for prompt in PROMPTS]
        self.started_s = time.monotonic()

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of the round so far, over its time so far."""
        elapsed_s = time.monotonic() - self.started_s
        return sum(a.num_tokens for a in self.answers) / elapsed_s if elapsed_s > 0 else 0.0
