"""The proof, before anybody is told so, that requests are served."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

import structlog

from specsched_executor.core import GenerationRequest, ModelConfig, SamplingParams, TokenDelta
from specsched_executor.engine import Engine, EngineConfig

__all__ = ["NotReadyError", "prove_readiness"]

_log = structlog.get_logger(__name__)

_NUM_PROMPT_TOKENS: Final = 8
_NUM_OUTPUT_TOKENS: Final = 8


class NotReadyError(RuntimeError):
    """The engine did not complete a request of its own; the message has its reason."""


async def prove_readiness(engine: Engine, sizes: EngineConfig, model: ModelConfig) -> None:
    """Complete one short request; what is compiled at first use is compiled by it.

    Its prompt repeats a token, so that a drafter which looks back has something to propose. The
    engine's counters count it. Raises NotReadyError.
    """
    started = time.monotonic()
    room = min(engine.max_context_tokens, sizes.num_kv_blocks * sizes.block_size)
    num_prompt = max(1, min(_NUM_PROMPT_TOKENS, room // 2))
    first = model.bos_token_id if model.bos_token_id is not None else 0
    request = GenerationRequest(
        request_id="start-up",
        prompt_token_ids=(first,) * num_prompt,
        sampling=SamplingParams(
            temperature=0.0, max_tokens=min(_NUM_OUTPUT_TOKENS, num_prompt), ignore_eos=True
        ),
    )
    loop = asyncio.get_running_loop()
    end: asyncio.Future[TokenDelta] = loop.create_future()

    def take(delta: TokenDelta) -> None:
        if not end.done():  # nobody may wait for it any more
            end.set_result(delta)

    def sink(delta: TokenDelta) -> None:
        if delta.finish_reason is not None:
            with contextlib.suppress(RuntimeError):  # nor may the loop be there
                loop.call_soon_threadsafe(take, delta)

    engine.submit(request, sink)
    last = await end
    if last.finish_reason != "length":
        raise NotReadyError(f"a first request failed: {last.error or last.finish_reason}")
    _log.info("ready", seconds=round(time.monotonic() - started, 3))
