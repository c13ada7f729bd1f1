"""The engine's deltas and facts as messages of the API."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from smg_grpc_proto import vllm_engine_pb2 as pb

from specsched_executor.core import TokenDelta, TokenLogprobs
from specsched_executor.gateway.api import EngineStats, ServedModel
from specsched_executor.gateway.logprobs import to_input_logprobs, to_output_logprobs


def to_chunk(delta: TokenDelta, prompt_token_ids: Sequence[int]) -> pb.GenerateResponse:
    """New tokens of a streamed output; the first ones bring what was asked about the prompt."""
    return pb.GenerateResponse(
        chunk=pb.GenerateStreamChunk(
            token_ids=delta.token_ids,
            prompt_tokens=delta.num_prompt_tokens,
            completion_tokens=delta.num_output_tokens,
            output_logprobs=to_output_logprobs(delta.token_ids, delta.logprobs),
            input_logprobs=to_input_logprobs(prompt_token_ids, delta.prompt_logprobs),
            index=delta.index,
        )
    )


def to_complete(
    end: TokenDelta,
    output_ids: Sequence[int],
    *,
    logprobs: Sequence[TokenLogprobs] = (),
    prompt_token_ids: Sequence[int] = (),
    prompt_logprobs: Sequence[TokenLogprobs | None] = (),
) -> pb.GenerateResponse:
    """The end of an output: all of it, why it ended and what speculation brought.

    Log-probabilities are given for an output that was not streamed: chunks carry their own.
    """
    complete = pb.GenerateComplete(
        output_ids=output_ids,
        finish_reason=end.finish_reason or "",
        prompt_tokens=end.num_prompt_tokens,
        completion_tokens=end.num_output_tokens,
        output_logprobs=to_output_logprobs(output_ids, logprobs),
        input_logprobs=to_input_logprobs(prompt_token_ids, prompt_logprobs),
        index=end.index,
        spec_accepted_tokens=end.num_accepted_tokens,
        spec_draft_tokens=end.num_draft_tokens,
    )
    if isinstance(end.matched_stop, str):
        complete.matched_stop_str = end.matched_stop
    elif end.matched_stop is not None:
        complete.matched_token_id = end.matched_stop
    return pb.GenerateResponse(complete=complete)


def to_model_info(model: ServedModel) -> pb.GetModelInfoResponse:
    """Facts of the model. `max_req_input_len` leaves room for one output token."""
    return pb.GetModelInfoResponse(
        model_path=model.path,
        is_generation=True,
        max_context_length=model.max_context_tokens,
        vocab_size=model.vocab_size,
        served_model_name=model.name,
        tokenizer_path=model.path,
        model_type=model.model_type,
        architectures=model.architectures,
        eos_token_ids=model.eos_token_ids,
        pad_token_id=model.pad_token_id,
        bos_token_id=model.bos_token_id,
        max_req_input_len=model.max_context_tokens - 1,
    )


def to_server_info(
    model: ServedModel, num_open_requests: int, last_receive_s: float, uptime_s: float
) -> pb.GetServerInfoResponse:
    """Facts of the process. `last_receive_s` is Unix time, 0 before the first request."""
    return pb.GetServerInfoResponse(
        active_requests=num_open_requests,
        last_receive_timestamp=last_receive_s,
        uptime_seconds=uptime_s,
        server_type="vllm-grpc",
        data_parallel_size=1,
        kv_cache_dtype="auto",
        block_size=model.block_size,
        attention_backend=model.attention_backend,
        model_dtype=f"torch.{model.dtype}",
        max_num_seqs=model.max_requests,
    )


def to_loads(
    stats: EngineStats,
    *,
    output_tokens_per_second: float,
    num_unstarted_prompt_tokens: int,
    version: str,
) -> pb.GetLoadsResponse:
    """The engine's load now, as the one rank there is."""
    num_running, num_waiting = stats.num_running_requests, stats.num_waiting_requests
    load = pb.SchedulerLoad(
        num_running_reqs=num_running,
        num_waiting_reqs=num_waiting,
        num_total_reqs=num_running + num_waiting,
        num_used_tokens=stats.num_used_tokens,
        max_total_num_tokens=stats.max_tokens,
        token_usage=_share(stats.num_used_tokens, stats.max_tokens),
        gen_throughput=output_tokens_per_second,
        utilization=_share(num_running, stats.max_running_requests),
        max_running_requests=stats.max_running_requests,
        num_waiting_uncached_tokens=num_unstarted_prompt_tokens,
    )
    now = dt.datetime.now(dt.UTC).isoformat()
    return pb.GetLoadsResponse(timestamp=now, version=version, dp_rank_count=1, loads=[load])


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
