"""Regrets as `specsched replay` tells them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsched_scheduler.decision.calibration import GREEDY
from specsched_scheduler.learning.calibration.observations import Observations
from specsched_scheduler.learning.errors import TraceError
from specsched_scheduler.learning.trace import read_trace
from specsched_scheduler.policies import BuiltPolicy
from specsched_scheduler.trace.reader import TraceFile

from .cost_file import read_cost
from .drafts import learned_survival, steps_of_drafts
from .recorded import recorded_steps
from .regret import judge_choices

__all__ = ["Recording", "judge_drafts", "judge_recorded", "oracle_lines"]


def judge_recorded(files: Sequence[TraceFile], policy: BuiltPolicy) -> dict[str, Any]:
    """What was run, and what `policy` decides, against the oracles.

    Raises TraceError where no step has an outcome and the confidences of its drafts.
    """
    steps = list(recorded_steps(files, policy))
    if not steps:
        raise TraceError("no step has an outcome and the confidences of its own drafts")
    return judge_choices(steps).document("recorded", "new")


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded drafts (.npz) and what steps are to cost.

    is_greedy: the class of all rows, for a recording without temperatures.
    """

    path: Path
    cost: Path
    is_greedy: bool | None = None

    def classes(self) -> dict[int, Observations]:
        """The drafts of each sampling class. Raises TraceError."""
        try:
            return read_trace(self.path, is_greedy=self.is_greedy)
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror}") from error
        except TraceError as error:
            raise TraceError(f"{self.path}: {error}") from error


def judge_drafts(
    recording: Recording, policy: BuiltPolicy, num_requests: Sequence[int]
) -> list[dict[str, Any]]:
    """What `policy` decides, for each sampling class and number of requests at once.

    Raises TraceError naming what is wrong with a file.
    """
    results = []
    for of_class, drafts in recording.classes().items():
        table = read_cost(recording.cost, drafts.max_draft_tokens)
        survival = learned_survival(drafts)
        for number in num_requests:
            steps = steps_of_drafts(drafts, survival, policy, table, num_requests=number)
            oracle = judge_choices(list(steps)).document("new")
            name = "greedy" if of_class == GREEDY else "sampled"
            results.append({"class": name, "num_requests": number, "oracle": oracle})
    return results


def oracle_lines(oracle: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    num_steps, open_share = oracle["num_steps"], oracle["open_share"]
    yield f"oracles on {num_steps} steps; {open_share:.1%} of the first one's tokens by chance"
    sides = list(oracle["tokens_per_second"])
    yield f"{'oracle':14}{'tokens/s':>12}" + "".join(f"{f'regret, {s}':>28}" for s in sides)
    for name, result in oracle["oracles"].items():
        regrets = "".join(f"{_percent(result['regret'][side]):>28}" for side in sides)
        yield f"{name:14}{result['tokens_per_second']:>12.3f}{regrets}"


def _percent(regret: dict[str, Any]) -> str:
    if regret["low"] is None:
        return f"{regret['mean']:.2%}"
    return f"{regret['mean']:.2%} ({regret['low']:.2%} to {regret['high']:.2%})"
