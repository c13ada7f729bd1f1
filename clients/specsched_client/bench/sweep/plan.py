"""What a sweep measures, checked before it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from specsched_protocol.policy_text import policy_text

from specsched_client._errors import InvalidRequestError
from specsched_client._policy import to_policy_spec
from specsched_client._sampling import Sampling
from specsched_client.bench.load import ClosedLoop
from specsched_client.bench.machine import describe_machine, versions
from specsched_client.bench.plan import BASELINE, require_timeout
from specsched_client.bench.prompts import BenchPrompt, digest, read_prompts
from specsched_client.bench.sender import SteadyTimes
from specsched_client.bench.server_facts import ExecutorFacts, SchedulerFacts
from specsched_client.bench.session import Variant
from specsched_client.cli._discovery import find_scheduler

from .verdict import BLOCK

__all__ = ["OFF", "SweepPlan"]

OFF: Final = "off"
"""The policy that speculates nothing; the drafter then drafts nothing, either."""
_REQUESTS_PER_USER: Final = 4
_SETTLE_SECONDS: Final = 0.3


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Loads, settings and the requests of a round.

    fixed: numbers of drafts; empty for all up to the executor's. num_requests: None for one per
    prompt, or four per user. half_width: of every ratio's interval, as a share of the ratio.
    round_seconds: that count of a steady round; None: whole rounds. settle_seconds: of a steady
    round, before those that count. num_processes: that send requests.
    max_seconds: after which no repeat is begun; None: as long as it takes. against: policies in
    place of no speculation and fixed numbers of drafts. every_setting: measure those that are
    clearly behind as often as the others.
    """

    prompts: tuple[BenchPrompt, ...]
    prompt_file: str
    target: str
    baseline_target: str | None
    scheduler_target: str
    concurrency: tuple[int, ...]
    fixed: tuple[int, ...]
    policy: str
    sampling: Sampling
    num_requests: int | None
    seed: int | None
    timeout_s: float | None
    half_width: float
    min_repeats: int
    max_repeats: int
    round_seconds: float | None = None
    settle_seconds: float | None = None
    num_processes: int = 1
    max_seconds: float | None = None
    against: tuple[str, ...] = ()
    every_setting: bool = False

    def __post_init__(self) -> None:
        for name, values in (("concurrency", self.concurrency), ("fixed", self.fixed)):
            if len(set(values)) < len(values) or any(value < 1 for value in values):
                raise InvalidRequestError(f"--{name} {values}; accepted: 1 or more, each once")
        for name in ("min_repeats", "max_repeats"):
            if (value := getattr(self, name)) < BLOCK or value % BLOCK:
                option = name.replace("_", "-")
                raise InvalidRequestError(f"--{option} {value}; accepted: multiples of {BLOCK}")
        if self.max_repeats < self.min_repeats:
            raise InvalidRequestError(
                f"--max-repeats {self.max_repeats}; accepted: --min-repeats or more"
            )
        for name in ("half_width", "round_seconds", "max_seconds"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                option = name.replace("_", "-")
                raise InvalidRequestError(f"--{option} {value}; accepted: a finite number above 0")
        if self.settle_seconds is not None and not 0 <= self.settle_seconds < math.inf:
            raise InvalidRequestError(
                f"--settle-seconds {self.settle_seconds}; accepted: a finite number, 0 or more"
            )
        self._check_rounds()
        require_timeout(self.timeout_s)
        self._check_policies()
        if self.baseline_target == self.target:
            raise InvalidRequestError(f"--baseline-target {self.target} is the target itself")

    def _check_policies(self) -> None:
        for policy in (self.policy, *self.against):
            to_policy_spec(policy)
        if self.against and self.fixed:
            raise InvalidRequestError("--fixed has no effect with --against")

    def _check_rounds(self) -> None:
        if self.round_seconds is None:
            for option, is_given in (
                ("clients", self.num_processes > 1),
                ("settle-seconds", self.settle_seconds is not None),
            ):
                if is_given:
                    raise InvalidRequestError(f"--{option} has no effect without --round-seconds")
        if self.round_seconds is not None and self.num_requests is not None:
            raise InvalidRequestError("--num-requests has no effect with --round-seconds")

    @classmethod
    def of(
        cls,
        *,
        prompts: Path,
        concurrency: Sequence[int],
        fixed: Sequence[int],
        against: Sequence[str],
        max_tokens: int,
        temperature: float,
        ignore_eos: bool,
        run_dir: Path | None,
        scheduler: str | None,
        **options: Any,
    ) -> SweepPlan:
        """Read the options of the command. Raises InvalidRequestError, naming a bad one.

        Raises ConnectionFailedError where no scheduler is there.
        """
        return cls(
            prompts=tuple(read_prompts(prompts)),
            prompt_file=str(prompts),
            concurrency=tuple(concurrency),
            fixed=tuple(fixed),
            against=tuple(against),
            sampling=Sampling(
                temperature=temperature, max_tokens=max_tokens, ignore_eos=ignore_eos
            ),
            scheduler_target=find_scheduler(run_dir, scheduler)[1],
            **options,
        )

    def loads(self) -> list[ClosedLoop]:
        """One for each concurrency, in the order given."""
        return [ClosedLoop(each) for each in self.concurrency]

    @property
    def steady(self) -> SteadyTimes | None:
        """Of steady rounds; None: rounds are whole."""
        if self.round_seconds is None:
            return None
        settle_s = _SETTLE_SECONDS if self.settle_seconds is None else self.settle_seconds
        return SteadyTimes(settle_s, self.round_seconds)

    def requests_of(self, load: ClosedLoop) -> int:
        """Requests of a whole round under `load`."""
        return self.num_requests or max(len(self.prompts), _REQUESTS_PER_USER * load.concurrency)

    def variants(self, max_draft_tokens: int | None) -> tuple[Variant, ...]:
        """No speculation, fixed numbers of drafts, and last the schedule.

        max_draft_tokens: the executor's k. Raises InvalidRequestError for a number beyond it.
        """
        if not max_draft_tokens:
            raise InvalidRequestError(
                f"{self.scheduler_target}: no executor that drafts is attached, nothing to sweep"
            )
        if any(k > max_draft_tokens for k in self.fixed):
            raise InvalidRequestError(
                f"--fixed {max(self.fixed)}; accepted: up to {max_draft_tokens}, as the executor"
                " drafts"
            )
        lengths = self.fixed or range(1, max_draft_tokens + 1)
        others = self.against or (OFF, *(f"fixed({k})" for k in lengths))
        policies = [*others, self.policy]
        if len({policy_text(to_policy_spec(each)) for each in policies}) < len(policies):
            raise InvalidRequestError(
                f"--policy {self.policy} is one of the static settings"
                if not self.against
                else f"--policy {self.policy} --against {', '.join(others)}; accepted: each once"
            )
        variants = [Variant(policy, self.target, policy) for policy in policies]
        if self.baseline_target is not None:
            variants.insert(1, Variant(BASELINE, self.baseline_target, is_scheduled=False))
        return tuple(variants)

    def settings(self, variants: Sequence[Variant]) -> dict[str, Any]:
        """What a report tells of it. variants: as of `variants`, the schedule last."""
        return {
            **self._work(),
            "prompts": self.prompt_file,
            "concurrency": list(self.concurrency),
            "policy": self.policy,
            "against": [variant.name for variant in variants[:-1]],
            "half_width": self.half_width,
            "min_repeats": self.min_repeats,
            "max_repeats": self.max_repeats,
            "max_seconds": self.max_seconds,
        }

    def identity(
        self,
        variants: Sequence[Variant],
        executors: Sequence[ExecutorFacts],
        scheduler: SchedulerFacts,
    ) -> Mapping[str, Any]:
        """All that has to be the same for repeats to belong to one sweep, as plain values.

        Not in it: which loads, and how precise; a sweep may be resumed with more of both. Nor the
        policy in force at the start.
        """
        facts = asdict(scheduler)
        del facts["policy"]
        return {
            **self._work(),
            "variants": [asdict(variant) for variant in variants],
            "executors": [asdict(each) for each in executors],
            "scheduler": facts,
            "machine": asdict(describe_machine()),
            "versions": versions(),
        }

    def _work(self) -> dict[str, Any]:
        return {
            "prompts_sha256": digest(self.prompts),
            "num_prompts": len(self.prompts),
            "num_requests": self.num_requests,
            "max_tokens": self.sampling.max_tokens,
            "temperature": self.sampling.temperature,
            "seed": self.seed,
            "ignore_eos": self.sampling.ignore_eos,
            "steady": None if self.steady is None else asdict(self.steady),
            "num_processes": self.num_processes,
            "every_setting": self.every_setting,
        }
