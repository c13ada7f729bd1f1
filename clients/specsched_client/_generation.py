"""One generation without any input or output: the request to send and what its answers mean."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import cast

from smg_grpc_proto import vllm_engine_pb2 as pb

from specsched_client._errors import InvalidRequestError, ServerError
from specsched_client._output import Output
from specsched_client._sampling import Sampling
from specsched_client._types import Completion, Delta, Message, Prompt, TextCodec

_MAX_TOKEN_ID = 2**32 - 1


def needs_text(prompt: Prompt) -> bool:
    """Whether a prompt needs the model's tokenizer. Raises InvalidRequestError for an empty one."""
    if not prompt:
        raise InvalidRequestError("the prompt is empty; accepted: text, token ids or messages")
    return not isinstance(prompt[0], int)


class Generation:
    """Builds the request of one prompt and folds the responses into deltas.

    `codec` must be given for a prompt that `needs_text`.
    """

    def __init__(
        self,
        prompt: Prompt,
        sampling: Sampling,
        codec: TextCodec | None,
        *,
        stream: bool,
        request_id: str | None = None,
    ) -> None:
        request_id = request_id or uuid.uuid4().hex
        self._outputs = [
            Output(request_id, index, sampling, codec.decoder() if codec else None)
            for index in range(sampling.n)
        ]
        self.request = pb.GenerateRequest(
            request_id=request_id,
            tokenized=pb.TokenizedInput(input_ids=_prompt_ids(prompt, codec)),
            sampling_params=_to_wire(sampling),
            stream=stream,
        )

    def feed(self, response: pb.GenerateResponse) -> Delta:
        """What a response adds. Raises ServerError for one that makes no sense."""
        match response.WhichOneof("response"):
            case "chunk":
                return self._output(response.chunk.index).extend(response.chunk)
            case "complete":
                return self._output(response.complete.index).complete(response.complete)
            case other:
                raise ServerError(f"a response holds {other!r}; expected a chunk or the end")

    def end(self) -> None:
        """Check, once the server says no more, that all outputs were complete."""
        if not all(output.is_finished for output in self._outputs):
            raise ServerError("the stream ended before the output was complete")

    def _output(self, index: int) -> Output:
        if index >= len(self._outputs):
            raise ServerError(f"a response is for output {index} of {len(self._outputs)}")
        return self._outputs[index]


def require_single(sampling: Sampling | None) -> None:
    """Raise InvalidRequestError where several outputs are asked of a call that returns one."""
    if sampling is not None and sampling.n != 1:
        raise InvalidRequestError(
            f"n = {sampling.n}; accepted: 1, or more with generate_all() or stream()"
        )


def completions_of(deltas: Sequence[Delta]) -> list[Completion]:
    """The completions that the deltas of a request carry, in order of their index."""
    found = [delta.completion for delta in deltas if delta.completion is not None]
    return sorted(found, key=lambda completion: completion.index)


def whole_of(deltas: Sequence[Delta]) -> Completion:
    """The completion that the last of a request's deltas carries."""
    completion = deltas[-1].completion if deltas else None
    if completion is None:
        raise ServerError("the stream ended before the output was complete")
    return completion


def _prompt_ids(prompt: Prompt, codec: TextCodec | None) -> Sequence[int]:
    if not needs_text(prompt):
        token_ids = cast("Sequence[int]", prompt)
        for token_id in token_ids:
            if not isinstance(token_id, int) or not 0 <= token_id <= _MAX_TOKEN_ID:
                raise InvalidRequestError(
                    f"token id {token_id!r} in the prompt; accepted: ints >= 0"
                )
        return token_ids
    if codec is None:
        raise InvalidRequestError("a prompt of text needs the model's tokenizer")
    if isinstance(prompt, str):
        return codec.encode(prompt)
    return codec.encode_chat(cast("Sequence[Message]", prompt))


def _to_wire(sampling: Sampling) -> pb.SamplingParams:
    return pb.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias,
        n=sampling.n,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        include_stop_str_in_output=sampling.include_stop,
        ignore_eos=sampling.ignore_eos,
    )
