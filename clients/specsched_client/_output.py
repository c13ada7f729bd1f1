"""One output of a generation: responses folded into text and a completion."""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto import vllm_engine_pb2 as pb

from specsched_client._errors import ServerError
from specsched_client._sampling import Sampling
from specsched_client._stop_text import StopTrimmer
from specsched_client._types import Completion, Delta, TextDecoder, TokenLogprob


class Output:
    """What came of output `index` so far. decoder: None for a prompt given as token ids."""

    def __init__(
        self, request_id: str, index: int, sampling: Sampling, decoder: TextDecoder | None
    ) -> None:
        self._request_id = request_id
        self._index = index
        self._decoder = decoder
        self._trimmer = StopTrimmer(
            () if sampling.include_stop else sampling.stop, first_counts=sampling.min_tokens == 0
        )
        self._token_ids: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
        self.is_finished = False

    def extend(self, chunk: pb.GenerateStreamChunk) -> Delta:
        """Add a chunk."""
        self._token_ids += chunk.token_ids
        self._keep_logprobs(chunk)
        token_ids = tuple(chunk.token_ids)
        return Delta(token_ids, self._show(token_ids), index=self._index)

    def complete(self, complete: pb.GenerateComplete) -> Delta:
        """Add the end."""
        rest = tuple(complete.output_ids[len(self._token_ids) :])
        matched = complete.WhichOneof("matched_stop")
        stop_string = complete.matched_stop_str if matched == "matched_stop_str" else None
        text = self._show(rest)
        if self._decoder is not None and text is not None:
            tail = self._trimmer.finish(self._decoder.flush(), stop_string)
            self._text.append(tail)
            text += tail
        self._token_ids += rest
        self._keep_logprobs(complete)
        self.is_finished = True
        completion = Completion(
            request_id=self._request_id,
            token_ids=tuple(self._token_ids),
            text=None if self._decoder is None else "".join(self._text),
            finish_reason=complete.finish_reason,
            matched_stop=getattr(complete, matched) if matched else None,
            num_prompt_tokens=complete.prompt_tokens,
            num_output_tokens=complete.completion_tokens,
            num_draft_tokens=complete.spec_draft_tokens,
            num_accepted_tokens=complete.spec_accepted_tokens,
            index=self._index,
            logprobs=tuple(self._logprobs),
            prompt_logprobs=self._prompt_logprobs,
        )
        return Delta(rest, text, completion, index=self._index)

    def _show(self, token_ids: Sequence[int]) -> str | None:
        if self._decoder is None:
            return None
        text = self._trimmer.push(self._decoder.push(token_ids))
        self._text.append(text)
        return text

    def _keep_logprobs(self, message: pb.GenerateStreamChunk | pb.GenerateComplete) -> None:
        told = message.output_logprobs
        self._logprobs += _paired(told.token_ids, told.token_logprobs, told.top_logprobs)
        if message.HasField("input_logprobs"):
            prompt = message.input_logprobs
            values = [each.value for each in prompt.token_logprobs]
            paired = _paired(prompt.token_ids, values, prompt.top_logprobs)
            self._prompt_logprobs = tuple(
                each if wire.HasField("value") else None
                for each, wire in zip(paired, prompt.token_logprobs, strict=True)
            )


def _paired(
    token_ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[pb.TopLogProbs]
) -> list[TokenLogprob]:
    if len(token_ids) != len(logprobs) or len(tops) not in {0, len(token_ids)}:
        raise ServerError(
            f"{len(token_ids)} tokens came with {len(logprobs)} log-probabilities and"
            f" {len(tops)} lists of alternatives"
        )
    pairs = [tuple(zip(top.token_ids, top.values, strict=False)) for top in tops]
    pairs = pairs or [()] * len(token_ids)
    return [TokenLogprob(*each) for each in zip(token_ids, logprobs, pairs, strict=True)]
