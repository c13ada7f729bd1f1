"""A whole measurement, and its JSON."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .load import Load
from .machine import describe_machine, versions
from .server_facts import ExecutorFacts, SchedulerFacts
from .statistics import Ratio, paired_ratio
from .summary import RoundResult, Summary, summarise

__all__ = ["LoadResult", "Report", "load_result"]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One load: name of each variant -> its rounds, its summary, its ratio to the first variant.

    The ratio is of tokens per second, repeat by repeat; the first variant has none, nor has one to
    which a round brought no token. Variants that were not measured to the end have fewer rounds:
    the first ones.
    """

    load: Load
    rounds: Mapping[str, Sequence[RoundResult]]
    summaries: Mapping[str, Summary]
    ratios: Mapping[str, Ratio]

    @property
    def baseline(self) -> str:
        """The variant that the others are compared with."""
        return next(iter(self.rounds))


def load_result(load: Load, rounds: Mapping[str, Sequence[RoundResult]]) -> LoadResult:
    """Summarise the rounds of one load."""
    speeds = {name: [one.tokens_per_s for one in each] for name, each in rounds.items()}
    baseline, *others = rounds
    return LoadResult(
        load=load,
        rounds=rounds,
        summaries={name: summarise(each) for name, each in rounds.items()},
        ratios={
            name: ratio for name in others if (ratio := _ratio(speeds[name], speeds[baseline]))
        },
    )


def _ratio(speeds: Sequence[float], baseline: Sequence[float]) -> Ratio | None:
    num_pairs = min(len(speeds), len(baseline))
    pairs = speeds[:num_pairs], baseline[:num_pairs]
    return paired_ratio(*pairs) if all(map(all, pairs)) else None


@dataclass(frozen=True, slots=True)
class Report:
    """Settings are those of the command; times in the rounds are seconds of one round's clock."""

    command: Sequence[str]
    settings: Mapping[str, Any]
    executors: Sequence[ExecutorFacts]
    scheduler: SchedulerFacts | None
    results: Sequence[LoadResult]
    recorded_at: str = field(
        default_factory=lambda: dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    )
    load_average_1min: float = field(default_factory=lambda: round(os.getloadavg()[0], 2))

    @property
    def num_failed_requests(self) -> int:
        """Requests that got no whole answer."""
        return sum(s.num_failed_requests for r in self.results for s in r.summaries.values())

    def to_json(self, *, with_requests: bool = True) -> str:
        """All of it; without the requests only the numbers of each round."""
        return json.dumps(self.document(with_requests=with_requests), indent=2, allow_nan=False)

    def document(self, *, with_requests: bool = True) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "command": list(self.command),
            "recorded_at": self.recorded_at,
            "machine": asdict(describe_machine()),
            "load_average_1min": self.load_average_1min,
            "versions": versions(),
            "executors": [asdict(each) for each in self.executors],
            "scheduler": asdict(self.scheduler) if self.scheduler else None,
            "settings": dict(self.settings),
            "results": [_load_document(each, with_requests) for each in self.results],
        }


def _load_document(result: LoadResult, with_requests: bool) -> dict[str, Any]:
    return {
        "load": {"kind": type(result.load).__name__, **asdict(result.load)},
        "baseline": result.baseline,
        "variants": {
            name: {
                "summary": asdict(result.summaries[name]),
                "ratio_to_baseline": asdict(ratio) if (ratio := result.ratios.get(name)) else None,
                "rounds": [_round_document(one, with_requests) for one in rounds],
            }
            for name, rounds in result.rounds.items()
        },
    }


def _round_document(one: RoundResult, with_requests: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "repeat": one.repeat,
        "tokens_per_s": one.tokens_per_s,
        "elapsed_s": one.elapsed_s,
        "num_output_tokens": one.num_output_tokens,
        "load_average_1min": one.load_average,
        "counted": asdict(one.counted) if one.counted else None,
        "plan_latency": asdict(one.plan_latency) if one.plan_latency else None,
    }
    if with_requests:
        origin_s = min(record.start_s for record in one.records)
        document["requests"] = [_from_origin(asdict(record), origin_s) for record in one.records]
    return document


def _from_origin(record: dict[str, Any], origin_s: float) -> dict[str, Any]:
    for name in ("start_s", "end_s", "first_token_s"):
        if record[name] is not None:
            record[name] = round(record[name] - origin_s, 6)
    return record
