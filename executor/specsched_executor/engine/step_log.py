"""What is told of steps: nothing at level `info`, but for a sample of the odd ones."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from specsched_protocol.logs import LogSampler
from specsched_protocol.plan import FallbackReason, StepReport

__all__ = ["StepLog"]

_log = structlog.get_logger(__name__)

_MIN_SAMPLES = 16
_WEIGHT = 0.05
_SLOW_FACTOR = 4.0
_SLOW_MS = 2.0
"""Steps this much above the mean are slow, if they took the factor, too."""


@dataclass(slots=True)
class _Usual:
    """Exponential mean of the time of steps of about one size."""

    mean_ms: float
    num_samples: int = 1

    def is_slow(self, ms: float) -> bool:
        """Whether `ms` is far above the mean; then takes it into the mean, an outlier in part."""
        limit = max(self.mean_ms * _SLOW_FACTOR, self.mean_ms + _SLOW_MS)
        is_slow = self.num_samples >= _MIN_SAMPLES and ms > limit
        weight = max(_WEIGHT, 1.0 / (self.num_samples + 1))
        self.mean_ms += weight * (min(ms, limit) - self.mean_ms)
        self.num_samples += 1
        return is_slow


class StepLog:
    """Told of every step; logs slow ones and those that fell back, as a `LogSampler` admits.

    Slow: at least 4 times and 2 ms above what steps of about as many rows take. That there is no
    scheduler is told only once there was one. One thread.
    """

    def __init__(self, sampler: LogSampler | None = None) -> None:
        self._sampler = sampler or LogSampler()
        self._usual: dict[int, _Usual] = {}
        self._had_scheduler = False
        self._log = _log.bind()  # a logger that is not bound is made anew for every line

    def observe(
        self,
        report: StepReport,
        budget: int,
        fallback: FallbackReason | None,
        *,
        has_drafts: bool = True,
    ) -> None:
        """A step that finished. budget: drafts it could verify. fallback: why it had no plan.

        has_drafts: whether it needed one.
        """
        ms = report.draft_ms + report.verify_ms
        self._log.debug(
            "step", step_id=report.step_id, rows=report.num_tokens, budget=budget, ms=ms
        )
        size = report.padded_num_tokens.bit_length()
        usual = self._usual.get(size)
        if usual is None:
            self._usual[size] = _Usual(ms)
        elif usual.is_slow(ms) and (count := self._sampler.admit("slow")):
            self._log.warning(
                "slow step",
                step_id=report.step_id,
                rows=report.num_tokens,
                ms=round(ms, 3),
                usual_ms=round(usual.mean_ms, 3),
                count=count,
            )
        self._had_scheduler |= fallback is not FallbackReason.NO_SCHEDULER
        is_told = fallback is not None and has_drafts and self._had_scheduler
        if is_told and (count := self._sampler.admit(fallback)):
            self._log.info(
                "step fell back",
                step_id=report.step_id,
                reason=str(fallback),
                budget=budget,
                count=count,
            )
