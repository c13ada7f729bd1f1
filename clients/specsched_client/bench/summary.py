"""From the records of a round to its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .counters import CountedSteps, PlanLatency, typical_latency
from .records import RequestRecord
from .statistics import Quantiles, quantiles
from .steady import Window

__all__ = ["RoundResult", "Summary", "summarise"]


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round of one variant. load_average: of the machine of this command, one minute.

    window: what counts of a steady round, whose records are of the requests that ended in it; None:
    all of the round. counted: over the whole round in either case.
    """

    repeat: int
    records: tuple[RequestRecord, ...]
    counted: CountedSteps | None
    plan_latency: PlanLatency | None
    load_average: float
    window: Window | None = None

    @property
    def elapsed_s(self) -> float:
        """First request due to last answer done, or the window."""
        if self.window is not None:
            return self.window.end_s - self.window.start_s
        return max(r.end_s for r in self.records) - min(r.start_s for r in self.records)

    @property
    def duration_s(self) -> float:
        """All that it took: of a steady round, filling up as well."""
        if self.window is not None:
            return self.window.end_s - self.window.begun_s
        return self.elapsed_s

    @property
    def num_output_tokens(self) -> int:
        """Tokens that came, of failed requests too; of a steady round, those in the window."""
        if self.window is not None:
            return self.window.num_output_tokens
        return sum(record.num_output_tokens for record in self.records)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all requests over the time of the round."""
        return self.num_output_tokens / self.elapsed_s


@dataclass(frozen=True, slots=True)
class Summary:
    """All rounds of one variant under one load.

    tokens_per_s: all output tokens over all time. tokens_per_s_per_user: of one request after its
    first token; p95 and p99 are those of the slow side. accepted_per_step: drafts kept per sampling
    request and step, the bonus token not counted. None: not known, or of no request.
    """

    num_rounds: int
    num_requests: int
    num_failed_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    tokens_per_s: float
    requests_per_s: float
    tokens_per_s_per_user: Quantiles | None
    time_to_first_token_ms: Quantiles | None
    time_per_output_token_ms: Quantiles | None
    accepted_per_step: float | None
    acceptance: float | None
    budget_share: float | None
    on_plan_share: float | None
    counted: CountedSteps | None
    plan_latency: PlanLatency | None


def summarise(rounds: Sequence[RoundResult]) -> Summary:
    """Pool the rounds of a variant, at least one."""
    records = [record for one in rounds for record in one.records]
    sound = [record for record in records if record.error is None]
    counted = _total([one.counted for one in rounds])
    elapsed_s = sum(one.elapsed_s for one in rounds)
    per_token = [t for r in sound if (t := r.time_per_output_token_s) is not None]
    first = [t for r in sound if (t := r.time_to_first_token_s) is not None]
    return Summary(
        num_rounds=len(rounds),
        num_requests=len(records),
        num_failed_requests=len(records) - len(sound),
        num_prompt_tokens=sum(record.num_prompt_tokens for record in records),
        num_output_tokens=sum(record.num_output_tokens for record in records),
        tokens_per_s=sum(one.num_output_tokens for one in rounds) / elapsed_s,
        requests_per_s=len(sound) / elapsed_s,
        tokens_per_s_per_user=_speeds(per_token),
        time_to_first_token_ms=quantiles([seconds * 1e3 for seconds in first]),
        time_per_output_token_ms=quantiles([seconds * 1e3 for seconds in per_token]),
        accepted_per_step=_accepted_per_step(sound),
        acceptance=counted.acceptance if counted else None,
        budget_share=counted.budget_share if counted else None,
        on_plan_share=counted.on_plan_share if counted else None,
        counted=counted,
        plan_latency=typical_latency([one.plan_latency for one in rounds]),
    )


def _speeds(seconds_per_token: Sequence[float]) -> Quantiles | None:
    slow = quantiles(seconds_per_token)
    if slow is None or slow.p50 <= 0:
        return None
    return Quantiles(slow.num_samples, 1 / slow.p50, 1 / slow.p95, 1 / slow.p99)


def _accepted_per_step(records: Sequence[RequestRecord]) -> float | None:
    """Every step of a request gives its accepted drafts and one token more."""
    num_accepted = sum(record.num_accepted_tokens for record in records)
    num_steps = sum(record.num_output_tokens for record in records) - num_accepted
    return num_accepted / num_steps if num_steps > 0 else None


def _total(counted: Sequence[CountedSteps | None]) -> CountedSteps | None:
    known = [each for each in counted if each is not None]
    if len(known) < len(counted):
        return None
    total = known[0]
    for each in known[1:]:
        total = total + each
    return total
