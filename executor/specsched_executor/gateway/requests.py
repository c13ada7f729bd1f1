"""GenerateRequest to the engine's GenerationRequest; refuses what could not take effect.

What the engine can judge (ranges, lengths, the vocabulary) it judges; here is only what the wire
says. Scalars without presence count as unset at 0, as the API's gateways send them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

from smg_grpc_proto import vllm_engine_pb2 as pb

from specsched_executor.core import GenerationRequest, RequestError, SamplingParams

_ABSENT_SAMPLING: Final = ("truncate_prompt_tokens",)
_ABSENT_REQUEST: Final = (
    "kv_transfer_params",
    "kv_transfer_params_json",
    "mm_inputs",
    "extra_mm_inputs",
    "media_refs",
)
"""Fields this executor does not act on, so they must not be there."""


def to_generation_request(
    wire: pb.GenerateRequest, prompt_token_ids: Sequence[int]
) -> GenerationRequest:
    """Convert a request whose prompt was tokenized already.

    An empty request_id gets a random one. Raises RequestError naming a field that cannot take
    effect.
    """
    _refuse_unsupported(wire)
    return GenerationRequest(
        request_id=wire.request_id or uuid.uuid4().hex,
        prompt_token_ids=tuple(prompt_token_ids),
        sampling=_to_sampling(wire.sampling_params),
    )


def _to_sampling(params: pb.SamplingParams) -> SamplingParams:
    # skip_special_tokens and spaces_between_special_tokens are for whoever turns ids into text.
    return SamplingParams(
        temperature=params.temperature if params.HasField("temperature") else 1.0,
        top_k=params.top_k,
        top_p=params.top_p or 1.0,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty or 1.0,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=tuple(sorted(params.logit_bias.items())),
        n=params.n or 1,
        logprobs=params.logprobs if params.HasField("logprobs") else None,
        prompt_logprobs=params.prompt_logprobs if params.HasField("prompt_logprobs") else None,
        seed=params.seed if params.HasField("seed") else None,
        max_tokens=params.max_tokens if params.HasField("max_tokens") else None,
        min_tokens=params.min_tokens,
        stop_token_ids=tuple(params.stop_token_ids),
        stop=tuple(params.stop),
        include_stop_str_in_output=params.include_stop_str_in_output,
        ignore_eos=params.ignore_eos,
    )


def _refuse_unsupported(wire: pb.GenerateRequest) -> None:
    params = wire.sampling_params
    for name in _ABSENT_SAMPLING:
        _refuse_present(params, name, "sampling_params.")
    for name in _ABSENT_REQUEST:
        _refuse_present(wire, name, "")
    constraint = params.WhichOneof("constraint")
    if constraint is not None or params.grammar_from_first_token:
        name = constraint or "grammar_from_first_token"
        raise RequestError(
            f"sampling_params.{name} is not supported: output cannot be constrained; leave it unset"
        )
    if wire.data_parallel_rank != 0:
        raise RequestError(
            f"data_parallel_rank = {wire.data_parallel_rank} does not exist; accepted: 0 or unset"
        )


def _refuse_present(message: Any, name: str, prefix: str) -> None:
    if any(field.name == name for field, _ in message.ListFields()):
        raise RequestError(f"{prefix}{name} is not supported; leave it unset")
