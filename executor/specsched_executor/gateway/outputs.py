"""The replies of one Generate call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from smg_grpc_proto import vllm_engine_pb2 as pb

from specsched_executor.core import GenerationRequest, TokenDelta, TokenLogprobs
from specsched_executor.gateway import responses


@dataclass(slots=True)
class _Output:
    """One output so far; what a stream's chunks carry is not kept for its end."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()


class Outputs:
    """Turns the deltas of a request's n outputs into replies.

    A stream gets a chunk for every delta with tokens; every output ends with a complete reply.
    """

    def __init__(self, request: GenerationRequest, *, stream: bool) -> None:
        self._prompt_token_ids = request.prompt_token_ids
        self._is_stream = stream
        self._outputs: dict[int, _Output] = {}

    def replies(self, delta: TokenDelta) -> Iterator[pb.GenerateResponse]:
        """What a delta is worth telling."""
        output = self._outputs.setdefault(delta.index, _Output())
        output.token_ids += delta.token_ids
        if self._is_stream:
            if delta.token_ids:
                yield responses.to_chunk(delta, self._prompt_token_ids)
        else:
            output.logprobs += delta.logprobs
            output.prompt_logprobs = output.prompt_logprobs or delta.prompt_logprobs
        if delta.finish_reason is not None:
            yield responses.to_complete(
                delta,
                output.token_ids,
                logprobs=output.logprobs,
                prompt_token_ids=self._prompt_token_ids,
                prompt_logprobs=output.prompt_logprobs,
            )
