"""Append what a step sampled."""

from __future__ import annotations

from collections.abc import Sequence

from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.stopping import Stop

__all__ = ["commit_tokens"]


def commit_tokens(
    request: ActiveRequest, token_ids: Sequence[int]
) -> tuple[Sequence[int], Stop | None]:
    """Append tokens up to the one that ends the output; those after it are discarded.

    Returns the tokens kept, and why the request ends if it does.
    """
    rules, num_output_tokens = request.stop_rules, request.num_output_tokens
    if rules.surely_pass(token_ids, num_output_tokens + len(token_ids)):
        request.tokens.extend(token_ids)
        return token_ids, None
    for index, token_id in enumerate(token_ids):
        request.tokens.append(token_id)
        stop = rules.check(token_id, num_output_tokens + index + 1)
        if stop is not None:
            return token_ids[: index + 1], stop
    return token_ids, None
