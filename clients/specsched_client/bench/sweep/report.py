"""A finished sweep, as JSON and as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from specsched_client.bench.load import ClosedLoop
from specsched_client.bench.report import LoadResult, Report
from specsched_client.bench.table import ratio_text, share_text

from .verdict import Verdict

__all__ = ["SweepReport"]


@dataclass(frozen=True, slots=True)
class SweepReport:
    """verdicts: of report.results, one each. half_width: the one that was aimed at.

    missing: loads that time did not suffice for.
    """

    report: Report
    verdicts: Sequence[Verdict]
    half_width: float
    missing: Sequence[ClosedLoop] = ()

    def to_json(self) -> str:
        """The document of `bench serve` without single requests, with each load's verdict."""
        document = self.report.document(with_requests=False)
        for result, verdict in zip(document["results"], self.verdicts, strict=True):
            result["verdict"] = verdict.document(self.half_width)
        return json.dumps(document, indent=2, allow_nan=False)

    def tables(self) -> Iterator[Table]:
        """One of each load, and one of all."""
        for result, verdict in zip(self.report.results, self.verdicts, strict=True):
            yield _load_table(result, verdict)
        yield self._summary()

    def remarks(self) -> Iterator[str]:
        """What a reader has to know of these figures."""
        if self.missing:
            loads = ", ".join(str(load.concurrency) for load in self.missing)
            yield f"not measured, time was over before: concurrency {loads}"
        for result, verdict in zip(self.report.results, self.verdicts, strict=True):
            if verdict.half_width > self.half_width:
                yield (
                    f"{result.load}: the widest interval still reaches {verdict.half_width:.1%}"
                    f" from its ratio after {verdict.num_repeats} repeats, more than"
                    f" {self.half_width:.1%}"
                )

    def _summary(self) -> Table:
        table = Table("load", "best other", title="scheduled / best other", title_justify="left")
        for name in ("ratio (95 %)", "repeats"):
            table.add_column(name, justify="right")
        for result, verdict in zip(self.report.results, self.verdicts, strict=True):
            best = verdict.best_static
            chosen = " or ".join(dict.fromkeys(best.chosen))
            repeats = str(verdict.num_repeats)
            table.add_row(str(result.load), chosen, ratio_text(best.ratio), repeats)
        return table


def _load_table(result: LoadResult, verdict: Verdict) -> Table:
    table = Table("", title=str(result.load), title_justify="left")
    columns = ("tokens/s", "per user", "accepted per step", "budget share", "on plan")
    for name in (*columns, "scheduled / it (95 %)", "repeats"):
        table.add_column(name, justify="right")
    for name, summary in result.summaries.items():
        user, accepted = summary.tokens_per_s_per_user, summary.accepted_per_step
        ratio = verdict.ratios.get(name)
        table.add_row(
            name,
            f"{summary.tokens_per_s:.1f}",
            "-" if user is None else f"{user.p50:.1f}",
            "-" if accepted is None else f"{accepted:.2f}",
            share_text(summary.budget_share),
            share_text(summary.on_plan_share),
            "" if ratio is None else ratio_text(ratio),
            f"{summary.num_rounds}{', behind' if name in verdict.behind else ''}",
        )
    return table
