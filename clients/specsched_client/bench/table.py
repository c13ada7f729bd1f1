"""A measurement as tables for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.table import Table

from .report import LoadResult
from .statistics import Quantiles, Ratio
from .summary import Summary

__all__ = ["load_table", "ratio_text", "share_text"]

_WIDEST: Final = 10.0
"""An interval that reaches further than by this factor, as of two unlike rounds, tells nothing."""


def load_table(result: LoadResult) -> Table:
    """One column per variant."""
    table = Table(title=str(result.load), title_justify="left")
    table.add_column("", style="dim")
    for name in result.summaries:
        table.add_column(name, justify="right")
    if result.ratios:
        ratios = [_ratio_cell(result, name) for name in result.summaries]
        table.add_row(f"ratio to {result.baseline}", *ratios)
        table.add_section()
    for label, show in _ROWS:
        table.add_row(label, *(show(summary) for summary in result.summaries.values()))
    return table


def _ratio_cell(result: LoadResult, name: str) -> str:
    if name == result.baseline:
        return "1"
    ratio = result.ratios.get(name)
    return "-" if ratio is None else ratio_text(ratio)


def ratio_text(ratio: Ratio) -> str:
    """Mean and, where there is one that tells anything, interval."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean:.3f}"
    if ratio.high > _WIDEST * ratio.mean:
        return f"{ratio.mean:.3f} (unsure: take more repeats)"
    return f"{ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _times(quantiles: Quantiles | None) -> str:
    if quantiles is None:
        return "-"
    return f"{quantiles.p50:.1f} / {quantiles.p95:.1f} / {quantiles.p99:.1f}"


def share_text(value: float | None) -> str:
    """As a percentage."""
    return "-" if value is None else f"{value:.1%}"


def _counts(summary: Summary) -> str:
    counted = summary.counted
    if counted is None:
        return "-"
    stages = ("drafted", "scheduled", "verified", "accepted")
    return " / ".join(f"{getattr(counted, f'num_{stage}_tokens'):,}" for stage in stages)


def _fallbacks(summary: Summary) -> str:
    if summary.counted is None:
        return "-"
    reasons = summary.counted.num_fallback_steps.items()
    return ", ".join(f"{count} {reason}" for reason, count in reasons) or "none"


def _plan_latency(summary: Summary) -> str:
    latency = summary.plan_latency
    return "-" if latency is None else f"{latency.p50_us:.0f} / {latency.p99_us:.0f}"


_ROWS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("tokens/s", lambda s: f"{s.tokens_per_s:.1f}"),
    ("tokens/s per user, p50 / p95 / p99", lambda s: _times(s.tokens_per_s_per_user)),
    ("time to first token, ms, p50 / p95 / p99", lambda s: _times(s.time_to_first_token_ms)),
    ("time per output token, ms, p50 / p95 / p99", lambda s: _times(s.time_per_output_token_ms)),
    (
        "accepted per step",
        lambda s: "-" if s.accepted_per_step is None else f"{s.accepted_per_step:.2f}",
    ),
    ("drafted / scheduled / verified / accepted", _counts),
    ("budget share of drafts", lambda s: share_text(s.budget_share)),
    ("accepted of verified", lambda s: share_text(s.acceptance)),
    ("steps on plan", lambda s: share_text(s.on_plan_share)),
    ("fallbacks", _fallbacks),
    ("plan latency, us, p50 / p99", _plan_latency),
    ("requests", lambda s: f"{s.num_requests:,}"),
    ("failed", lambda s: f"{s.num_failed_requests:,}"),
    ("output tokens", lambda s: f"{s.num_output_tokens:,}"),
)
