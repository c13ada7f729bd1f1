"""What steps on a device cannot do, refused at the door rather than left out."""

from __future__ import annotations

from specsched_executor.core import RequestError, SamplingParams

__all__ = ["check_sampling"]

_ELSEWHERE = "serve such requests from an executor with --device cpu"


def check_sampling(params: SamplingParams) -> None:
    """Raise RequestError, naming the parameter, for what changes logits by the tokens before.

    Temperature, top_k, top_p, seeds, log-probabilities, stop tokens and stop strings are served.
    """
    for name, neutral in (
        ("min_tokens", 0),
        ("min_p", 0),
        ("repetition_penalty", 1),
        ("presence_penalty", 0),
        ("frequency_penalty", 0),
    ):
        value = getattr(params, name)
        if value != neutral:
            raise RequestError(f"{name} is {value}; accepted on a GPU: {neutral}; {_ELSEWHERE}")
    if params.logit_bias:
        raise RequestError(
            f"logit_bias is {params.logit_bias}; accepted on a GPU: none; {_ELSEWHERE}"
        )
