"""How sure recent drafts were: by position, the chance that a draft is accepted up to there.

Known as soon as anything is drafted, at whatever batch size and whether or not it is verified, and
hardly another at another load: so it says what drafts would bring at batch sizes not seen yet.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["NUM_QUANTILES", "Survivals"]

Floats = npt.NDArray[np.float64]

NUM_QUANTILES = 8
"""Kept of the spread at each position: under load only the surest drafts are verified."""
_NUM_ROWS = 128
_NUM_FIRST_ROWS = 16
"""What is believed at first counts as so many drafts."""
_FIRST_CONFIDENCE = 0.6
"""Believed of a drafter that nothing is known of: of each position, that its prefix holds."""
_NUM_KNOWN_ROWS = 64


class Survivals:
    """The newest drafts of one executor. Pure: no clock."""

    def __init__(self, max_draft_tokens: int) -> None:
        self._rows = np.empty((_NUM_ROWS, max_draft_tokens))
        self._num_seen = 0
        self._num_rows = self._next = 0
        self._begin_with(_first_quantiles(max_draft_tokens), _NUM_FIRST_ROWS)

    @property
    def is_known(self) -> bool:
        """Whether enough drafts were seen to go by them."""
        return self._num_seen >= _NUM_KNOWN_ROWS

    @staticmethod
    def choose(num_drafts: int) -> npt.NDArray[np.int64]:
        """Of more drafts than are remembered some, evenly: their indexes."""
        num_chosen = min(num_drafts, _NUM_ROWS)
        return np.linspace(0, num_drafts - 1, num_chosen).astype(np.int64)

    def see(self, confidence: npt.NDArray[np.floating]) -> None:
        """Take in drafts: calibrated confidences [n, k], NaN from where a draft ends; of many see
        `choose`.

        A position behind a draft's end is taken to hold as often, after the one before it, as in
        the drafts that are remembered.
        """
        confidence = confidence[confidence[:, 0] >= 0.0][-_NUM_ROWS:]
        if not len(confidence):
            return
        means = self._rows[: self._num_rows].mean(axis=0)
        typical = np.append(means[:1], means[1:] / np.maximum(means[:-1], 1e-9))
        is_drafted = (confidence >= 0.0) & (confidence <= 1.0)
        survival = np.cumprod(np.where(is_drafted, confidence, typical), axis=1)
        places = (self._next + np.arange(len(survival))) % _NUM_ROWS
        self._rows[places] = survival
        self._next = (self._next + len(survival)) % _NUM_ROWS
        self._num_rows = min(self._num_rows + len(survival), _NUM_ROWS)
        self._num_seen = min(self._num_seen + len(survival), _NUM_KNOWN_ROWS)

    def quantiles(self) -> Floats:
        """Float64 [NUM_QUANTILES, k], rising; each stands for as many drafts as the others."""
        rows: Floats = np.sort(self._rows[: self._num_rows], axis=0)
        middles = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES * len(rows)
        chosen: Floats = rows[middles.astype(int)]
        return chosen

    def restore(self, quantiles: Floats) -> None:
        """Go on from what another has seen, as `quantiles` told it."""
        self._begin_with(quantiles, _NUM_KNOWN_ROWS)
        self._num_seen = _NUM_KNOWN_ROWS

    def _begin_with(self, quantiles: Floats, num_rows: int) -> None:
        self._rows[:num_rows] = np.repeat(quantiles, num_rows // NUM_QUANTILES, axis=0)
        self._num_rows = self._next = num_rows


def _first_quantiles(max_draft_tokens: int) -> Floats:
    """Spread as u^(1/m - 1) of a uniform u, whose mean is m, the power of the first confidence."""
    means = _FIRST_CONFIDENCE ** np.arange(1, max_draft_tokens + 1)
    uniform = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    return np.asarray(uniform[:, None] ** (1.0 / means - 1.0))
