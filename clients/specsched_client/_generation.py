"""One generation without any input or output: the request to send and what its answers mean."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import cast

from smg_grpc_proto import vllm_engine_pb2 as pb

from specsched_client._errors import InvalidRequestError, ServerError
from specsched_client._sampling import Sampling
from specsched_client._stop_text import StopTrimmer
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
        self._decoder = codec.decoder() if codec else None
        self._trimmer = StopTrimmer(
            () if sampling.include_stop else sampling.stop, first_counts=sampling.min_tokens == 0
        )
        self._token_ids: list[int] = []
        self._text: list[str] = []
        self._finished = False
        self.request = pb.GenerateRequest(
            request_id=request_id or uuid.uuid4().hex,
            tokenized=pb.TokenizedInput(input_ids=_prompt_ids(prompt, codec)),
            sampling_params=_to_wire(sampling),
            stream=stream,
        )

    def feed(self, response: pb.GenerateResponse) -> Delta:
        """What a response adds. Raises ServerError for one that makes no sense."""
        match response.WhichOneof("response"):
            case "chunk":
                return self._extend(response.chunk.token_ids)
            case "complete":
                return self._complete(response.complete)
            case other:
                raise ServerError(f"a response holds {other!r}; expected a chunk or the end")

    def end(self) -> None:
        """Check, once the server says no more, that the output was complete."""
        if not self._finished:
            raise ServerError("the stream ended before the output was complete")

    def _extend(self, token_ids: Sequence[int]) -> Delta:
        self._token_ids += token_ids
        return Delta(tuple(token_ids), self._show(token_ids))

    def _show(self, token_ids: Sequence[int]) -> str | None:
        if self._decoder is None:
            return None
        text = self._trimmer.push(self._decoder.push(token_ids))
        self._text.append(text)
        return text

    def _complete(self, complete: pb.GenerateComplete) -> Delta:
        rest = tuple(complete.output_ids[len(self._token_ids) :])
        matched = complete.WhichOneof("matched_stop")
        stop_string = complete.matched_stop_str if matched == "matched_stop_str" else None
        text = self._show(rest)
        if self._decoder is not None and text is not None:
            tail = self._trimmer.finish(self._decoder.flush(), stop_string)
            self._text.append(tail)
            text += tail
        self._token_ids += rest
        self._finished = True
        completion = Completion(
            request_id=self.request.request_id,
            token_ids=tuple(self._token_ids),
            text=None if self._decoder is None else "".join(self._text),
            finish_reason=complete.finish_reason,
            matched_stop=getattr(complete, matched) if matched else None,
            num_prompt_tokens=complete.prompt_tokens,
            num_output_tokens=complete.completion_tokens,
            num_draft_tokens=complete.spec_draft_tokens,
            num_accepted_tokens=complete.spec_accepted_tokens,
        )
        return Delta(rest, text, completion)


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
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        include_stop_str_in_output=sampling.include_stop,
        ignore_eos=sampling.ignore_eos,
    )
