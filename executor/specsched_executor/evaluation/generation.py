"""Real generation by the engine, every draft verified."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specsched_executor.core import Drafter, GenerationRequest, SamplingParams, TokenDelta
from specsched_executor.engine import Engine, EngineConfig
from specsched_executor.engine.fallback import FallbackPolicy
from specsched_executor.evaluation.recorder import Outcomes, RecordingDrafter
from specsched_executor.model import LoadedModel
from specsched_executor.transport.none import NoTransport

__all__ = ["Answers", "GenerationError", "generate_answers"]


class GenerationError(RuntimeError):
    """A request did not come to its end."""


@dataclass(frozen=True, slots=True)
class Answers:
    """token_ids: of each prompt's answer. outcomes: request i has seed i."""

    token_ids: list[list[int]]
    outcomes: Outcomes


class _Sinks:
    """Gathers the deltas of all requests; called from the engine's thread."""

    def __init__(self, num_requests: int, on_end: Callable[[], None]) -> None:
        self.answers: list[list[int]] = [[] for _ in range(num_requests)]
        self.errors: list[str] = []
        self._num_open = num_requests
        self._on_end = on_end
        self.all_done = threading.Event()

    def take(self, index: int, delta: TokenDelta) -> None:
        self.answers[index] += delta.token_ids
        if delta.finish_reason is None:
            return
        if delta.finish_reason not in {"stop", "length"}:
            self.errors.append(delta.error or delta.finish_reason)
        self._num_open -= 1
        self._on_end()
        if not self._num_open:
            self.all_done.set()


def generate_answers(
    loaded: LoadedModel,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    sizes: EngineConfig,
    *,
    temperature: float,
    max_tokens: int,
    on_end: Callable[[], None] = lambda: None,
) -> Answers:
    """Answer all prompts; request i is seeded by i, so a run can be repeated.

    Every draft is verified whole, so that outcomes do not depend on a scheduler. Raises
    RequestError for a prompt that cannot be served, GenerationError where one failed.
    """
    recorder = RecordingDrafter(drafter, sizes.max_draft_tokens)
    engine = Engine(loaded.model, recorder, NoTransport(), sizes, loaded.tokenizer)
    sinks = _Sinks(len(prompts), on_end)
    try:
        for index, prompt in enumerate(prompts):
            sampling = SamplingParams(
                temperature=temperature, max_tokens=max_tokens, seed=index, repeatable=False
            )
            request = GenerationRequest(str(index), tuple(prompt), sampling)
            engine.submit(request, lambda delta, index=index: sinks.take(index, delta))  # type: ignore[misc]
        engine.start(on_failure=sinks.all_done.set)
        if prompts:
            sinks.all_done.wait()
    finally:
        engine.stop()
    if sinks.errors:
        raise GenerationError(f"{len(sinks.errors)} requests failed: {sinks.errors[0]}")
    return Answers(sinks.answers, recorder.outcomes())


def evaluation_sizes(num_seqs: int, max_draft_tokens: int, context: int) -> EngineConfig:
    """An engine that holds num_seqs requests of `context` tokens and verifies all they draft."""
    block_size = 16
    return EngineConfig(
        num_kv_blocks=num_seqs * (-(-context // block_size) + 1),
        max_num_seqs=num_seqs,
        max_num_batched_tokens=max(256, num_seqs * (max_draft_tokens + 1)),
        max_draft_tokens=max_draft_tokens,
        block_size=block_size,
        max_context_tokens=context,
        fallback=FallbackPolicy.parse(f"fixed({max_draft_tokens})"),
    )
