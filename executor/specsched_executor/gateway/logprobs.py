"""Log-probabilities as messages of the API."""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto import vllm_engine_pb2 as pb

from specsched_executor.core import TokenLogprobs


def to_output_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> pb.OutputLogProbs | None:
    """Of output tokens, one each; None where there are none. Alternatives only if asked for."""
    if not logprobs:
        return None
    return pb.OutputLogProbs(
        token_ids=token_ids,
        token_logprobs=[each.logprob for each in logprobs],
        top_logprobs=[_to_top(each) for each in logprobs if each.top_token_ids],
    )


def to_input_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
) -> pb.InputLogProbs | None:
    """Of a prompt's tokens, one each, without a value for the first; None where there are none."""
    if not logprobs:
        return None
    return pb.InputLogProbs(
        token_ids=token_ids,
        token_logprobs=[
            pb.InputTokenLogProb(value=each.logprob if each else None) for each in logprobs
        ],
        top_logprobs=[_to_top(each) if each else pb.TopLogProbs() for each in logprobs],
    )


def _to_top(logprobs: TokenLogprobs) -> pb.TopLogProbs:
    return pb.TopLogProbs(token_ids=logprobs.top_token_ids, values=logprobs.top_logprobs)
