"""The cost model, corrected by what steps took.

    measured = offset + scale * base(rows) + ms_per_token * context      robust, sizes weigh alike
    corrected(size) = ratio(region of the size) * (offset + scale * base(size))

`base` is the profile. A machine that became slower on the whole moves the scale, one whose rows
became dearer but not its weights the offset too, one whose context costs more than was profiled the
last term, and a stair that was measured wrong, or came to cost more, the ratio of its region. One
multiplicative or one additive term alone fails on what the other describes; without the offset,
dearer rows would pass for dearer context, as larger batches have more of both.

The fit rests on the newest samples of every size, however long ago, so that it does not follow the
load. When all known sizes at once take more (or less) than predicted, the machine has changed:
older samples are then scaled by as much, to hold until newer ones replace them.

Every step is predicted before it is learned from, by the profile and by the correction. Only while
the correction is the better one by more than noise is it used at all.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from specsched_scheduler.decision.cost import ContextCost, CostModel
from specsched_scheduler.decision.reference import verify_ms
from specsched_scheduler.learning.cost.drafts import DraftCorrector
from specsched_scheduler.learning.cost.probing import SizeProbes
from specsched_scheduler.learning.cost.regions import CONTEXT, GAIN, MEASURED_MS, ROWS, Regions
from specsched_scheduler.learning.cost.robust import fit_terms, median_beyond_noise
from specsched_scheduler.learning.cost.samples import CostSample, SampleWindow

__all__ = ["CostCorrection", "CostCorrector"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NUM_COLD_SAMPLES = 32
"""First steps of an executor: caches are cold and code is still being compiled."""
_MIN_SAMPLES = 16
_NUM_RECENT = 32
"""Steps that tell whether the machine changed; half of them bad, and it would seem so."""
_MIN_CHANGE = 0.04
_MIN_JUDGED = 16
_MIN_GAIN_Z = 1.5
_MAX_GAIN = 0.5
_IS_SIGNED = np.array([True, False, False])
_MIN_SHARE = 0.1
"""Least share of the base that a prediction can fall to, as in the price of a decision."""


@dataclass(frozen=True, slots=True)
class CostCorrection:
    """What was learned. offset_ms, scale, ms_per_context_token: terms of verification.

    ratios, num_samples: by profiled verify size. draft_ratios: by length, 0 for a full draft; to
    the slowdown of verification, see DraftCorrector.
    """

    offset_ms: float
    scale: float
    ms_per_context_token: float
    ratios: dict[int, float]
    num_samples: dict[int, int]
    draft_ratios: dict[int, float]


class CostCorrector:
    """Follows one executor. One thread. Idle without a model: three sizes at least are needed."""

    def __init__(self, profile: CostModel) -> None:
        self.profile = profile
        self._table = profile.compile()
        self._profiled = profile.context.profiled_tokens_per_request
        self._regions = Regions(profile)
        self._recent = SampleWindow(_NUM_RECENT, 1)
        self._is_handed_over = False
        self._drafts = DraftCorrector(profile, self._table)
        self._probes = SizeProbes(self._regions)
        self._terms = np.array([0.0, 1.0, profile.context.ms_per_token])
        self._num_seen = 0
        self._num_at_update = 0
        self.num_changes = 0

    @property
    def num_steps(self) -> int:
        """Finished steps seen."""
        return self._num_seen

    def observe(self, samples: Sequence[CostSample]) -> None:
        """Take in finished steps, oldest first; those that cannot be are left out."""
        first = self._num_seen + 1
        self._num_seen += len(samples)
        if not self._table.has_model:
            return
        taken = [
            (step, sample)
            for step, sample in enumerate(samples, first)
            if step > _NUM_COLD_SAMPLES
            and 0.0 < sample.verify_ms < np.inf
            and sample.num_tokens > 0
        ]
        if taken:
            self._take(*zip(*taken, strict=True))

    def update(self) -> bool:
        """Refit; whether there was anything to learn from since the last time."""
        samples = self._regions.samples()
        if len(samples) < _MIN_SAMPLES or self._num_seen == self._num_at_update:
            return False
        self._num_at_update = self._num_seen
        self._follow_change()
        samples = self._regions.samples()
        base = verify_ms(self._table, samples[:, ROWS].astype(np.int64))
        context, measured = samples[:, CONTEXT], samples[:, MEASURED_MS]
        terms = np.stack([np.ones(len(base)), base, context], axis=1)
        prior = np.array([0.0, 1.0, self.profile.context.ms_per_token])
        self._terms = fit_terms(terms, measured, prior, _IS_SIGNED, self._terms)
        fitted = self._fitted(base)
        # Only the part that rows cost is a region's to answer for.
        rows_ms = np.maximum(measured - self._terms[2] * context, _MIN_SHARE * fitted)
        self._regions.learn(np.log(rows_ms / fitted))
        self._drafts.update(self._slowdown)
        self._probes.judge()
        return True

    @property
    def is_worth_it(self) -> bool:
        """Whether the correction predicted steps of all sizes better than the profile did.

        What was handed over counts as proven until there are steps to judge it by.
        """
        gains = self._regions.samples()[:, GAIN]
        gains = gains[np.isfinite(gains)]
        if len(gains) < _MIN_JUDGED:
            return self._is_handed_over
        return bool(gains.mean() > _MIN_GAIN_Z * gains.std() / np.sqrt(len(gains)))

    def model(self) -> CostModel:
        """The profile, corrected where that is worth it. Its samples keep their relative spread."""
        is_worth_it = self.is_worth_it
        slowdown = self._slowdown if is_worth_it else _as_profiled
        draft = self._drafts.corrected(self.profile.draft, self._drafts.FULL, slowdown)
        short_drafts = {
            length: self._drafts.corrected(samples, length, slowdown)
            for length, samples in self.profile.short_drafts.items()
        }
        model = replace(self.profile, draft=draft, short_drafts=short_drafts)
        if not is_worth_it:
            return model
        context = ContextCost(float(self._terms[2]), self._profiled)
        return replace(model, verify=self._corrected_verify(), context=context)

    @property
    def has_learned(self) -> bool:
        """Whether there is anything to be kept."""
        return self._num_at_update > 0 or self._is_handed_over

    def probe_rows(self) -> int:
        """Rows of a size to be tried again in a step that can, 0 for none; see SizeProbes."""
        return self._probes.next_rows(self._num_seen) if self._table.has_model else 0

    def correction(self) -> CostCorrection:
        """What was learned, to be shown or kept."""
        return CostCorrection(
            offset_ms=float(self._terms[0]),
            scale=float(self._terms[1]),
            ms_per_context_token=float(self._terms[2]),
            ratios=self._regions.ratios(),
            num_samples=self._regions.num_visits(),
            draft_ratios=self._drafts.ratios(),
        )

    def restore(self, correction: CostCorrection) -> None:
        """Go on from what was learned before; sizes that are not in this profile are left out."""
        self._terms = np.array(
            [correction.offset_ms, correction.scale, correction.ms_per_context_token]
        )
        self._recent.clear()
        self._is_handed_over = True
        self._regions.restore(correction.ratios)
        self._drafts.restore(correction.draft_ratios)

    def _corrected_verify(self) -> dict[int, tuple[float, ...]]:
        verify = {}
        for size, samples in self.profile.verify.items():
            median = statistics.median(samples)
            region = self._regions.regions_of(np.array([size]))
            ratio = np.exp(self._regions.log_ratios(region))
            factor = float((ratio * self._fitted(np.array([median])))[0]) / median
            verify[size] = tuple(factor * ms for ms in samples)
        return verify

    def _slowdown(self, num_rows: int) -> float:
        """How many times as long as profiled a step of so many rows takes, context aside.

        What this size alone is off by is a fault of its profile: it slows no drafts down.
        """
        base = verify_ms(self._table, np.array([num_rows]))
        return float((self._fitted(base) / base)[0])

    def _fitted(self, base_ms: Floats) -> Floats:
        offset, scale, _ = self._terms
        fitted: Floats = np.maximum(offset + scale * base_ms, _MIN_SHARE * base_ms)
        return fitted

    def _take(self, steps: tuple[int, ...], samples: tuple[CostSample, ...]) -> None:
        num_tokens, num_sampling, context_tokens, verify_ms, *_ = (
            np.array(column) for column in zip(*samples, strict=True)
        )
        context = context_tokens - self._profiled * num_sampling
        regions = self._regions.regions_of(num_tokens)
        off, gains = self._judge(num_tokens, regions, context, verify_ms)
        columns = (regions, num_tokens, context, verify_ms, off, gains)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for step, row in zip(steps, rows, strict=True):
            region, tokens, its_context, ms, its_off, gain = row
            if self._num_at_update and self._regions.is_known(region):
                self._recent.add(its_off)
            self._regions.add(region, step, (tokens, its_context, ms, step, gain))
        self._drafts.observe(samples, self._slowdown if self._num_at_update else None)

    def _judge(
        self, num_tokens: Ints, regions: Ints, context: Floats, measured_ms: Floats
    ) -> tuple[Floats, Floats]:
        """(how far the correction is off, how much closer it comes than the profile) by step.

        Steps that neither has seen; in logs, the latter bounded so that one outlier does not
        decide, and NaN before there is a correction.
        """
        base = verify_ms(self._table, num_tokens)
        rows_ms = self._fitted(base) * np.exp(self._regions.log_ratios(regions))
        predicted = np.maximum(rows_ms + self._terms[2] * context, _MIN_SHARE * rows_ms)
        profiled = base + self.profile.context.ms_per_token * context
        off = np.log(measured_ms / predicted)
        before = np.log(measured_ms / np.maximum(profiled, _MIN_SHARE * base))
        gains = np.clip(np.abs(before) - np.abs(off), -_MAX_GAIN, _MAX_GAIN)
        return off, gains if self._num_at_update else np.full(len(gains), np.nan)

    def _follow_change(self) -> None:
        if len(self._recent) < _NUM_RECENT:
            return
        off = median_beyond_noise(self._recent.rows()[:, 0])
        if abs(off) > _MIN_CHANGE:
            self.num_changes += 1
            self._regions.scale_before(self._num_seen - _NUM_RECENT, float(np.exp(off)))
            self._recent.clear()


def _as_profiled(_: int) -> float:
    """The slowdown of a machine that is as it was profiled."""
    return 1.0
