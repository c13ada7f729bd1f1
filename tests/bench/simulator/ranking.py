"""The executor's ranking in numpy: what `specsched_kernels.allocate_verify_lens` gives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["rank_drafts"]


def rank_drafts(
    confidence: npt.NDArray[np.float32],
    num_draft_tokens: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float64],
    budget: int,
    max_verify_len: int,
) -> npt.NDArray[np.int64]:
    """verify_len, int64 [R]: the `budget` best weight * survival; ties by position, then row."""
    num_requests, k = confidence.shape
    longest = np.minimum(num_draft_tokens, max_verify_len)
    if budget >= longest.sum():
        return longest
    survival = np.cumprod(confidence.astype(np.float64), axis=1)
    gain = np.where(np.arange(k) < longest[:, None], weight[:, None] * survival, -1.0)
    order = np.argsort(-gain.T.reshape(-1), kind="stable")[:budget]
    return np.bincount(order % num_requests, minlength=num_requests).astype(np.int64)
