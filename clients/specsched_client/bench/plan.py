"""What a measurement does, checked before it starts; and doing it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specsched_protocol.policy_text import policy_text

from specsched_client._errors import ConnectionFailedError, InvalidRequestError
from specsched_client._policy import to_policy_spec
from specsched_client._sampling import Sampling
from specsched_client.cli._discovery import find_scheduler

from .load import ClosedLoop, Load, OpenLoop
from .prompts import BenchPrompt, digest, read_prompts
from .report import Report, load_result
from .server_facts import ask_scheduler
from .session import Progress, Session, Variant

__all__ = ["BenchPlan", "require_timeout", "run_plan"]

BASELINE = "none"
"""Name of the executor given as the baseline; a policy cannot have it."""
CURRENT = "as is"
"""Name of the variant whose policy is the one in force."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Loads and variants of a measurement, and the requests of a round.

    num_requests, num_warm_up: None for one request per prompt or user, and one per user.
    scheduler_target: whose policy is set and whose plan latency is read; None: nobody's.
    """

    prompts: tuple[BenchPrompt, ...]
    prompt_file: str
    loads: tuple[Load, ...]
    variants: tuple[Variant, ...]
    sampling: Sampling
    num_requests: int | None
    num_warm_up: int | None
    num_repeats: int
    seed: int | None
    timeout_s: float | None
    scheduler_target: str | None

    def __post_init__(self) -> None:
        require_timeout(self.timeout_s)

    @classmethod
    def of(
        cls,
        *,
        prompts: Path,
        target: str,
        concurrency: Sequence[int],
        rate: Sequence[float],
        policies: Sequence[str],
        baseline_target: str | None,
        max_tokens: int,
        temperature: float,
        ignore_eos: bool,
        run_dir: Path | None,
        scheduler: str | None,
        **options: Any,
    ) -> BenchPlan:
        """Read the options of the command. Raises InvalidRequestError, naming a bad one.

        Raises ConnectionFailedError where a policy is to be set and no scheduler is there.
        """
        sampling = Sampling(temperature=temperature, max_tokens=max_tokens, ignore_eos=ignore_eos)
        variants = _variants(target, policies, baseline_target)
        return cls(
            prompts=tuple(read_prompts(prompts)),
            prompt_file=str(prompts),
            loads=_loads(concurrency, rate),
            variants=variants,
            sampling=sampling,
            scheduler_target=_scheduler_target(run_dir, scheduler, is_needed=bool(policies)),
            **options,
        )

    def requests_of(self, load: Load) -> int:
        """Requests of a round under `load`."""
        return self.num_requests or max(len(self.prompts), _num_users(load))

    def warm_up_of(self, load: Load) -> int:
        """Requests of a warm-up under `load`."""
        return _num_users(load) if self.num_warm_up is None else self.num_warm_up

    def settings(self) -> dict[str, Any]:
        """What a report tells of it."""
        return {
            "prompts": self.prompt_file,
            "prompts_sha256": digest(self.prompts),
            "num_prompts": len(self.prompts),
            "num_requests": self.num_requests,
            "num_warm_up": self.num_warm_up,
            "num_repeats": self.num_repeats,
            "seed": self.seed,
            "max_tokens": self.sampling.max_tokens,
            "temperature": self.sampling.temperature,
            "ignore_eos": self.sampling.ignore_eos,
            "variants": [asdict(variant) for variant in self.variants],
        }


async def run_plan(plan: BenchPlan, progress: Progress, *, command: Sequence[str]) -> Report:
    """Measure. Raises SpecschedError where a process cannot be reached or refuses a policy."""
    results = []
    async with Session.open(plan.variants, plan.scheduler_target, progress) as session:
        executors = await session.executors()
        scheduler = await ask_scheduler(plan.scheduler_target) if plan.scheduler_target else None
        work = await session.workload(
            plan.variants[-1].target,
            plan.prompts,
            plan.sampling,
            seed=plan.seed,
            timeout_s=plan.timeout_s,
        )
        for load in plan.loads:
            num_warm_up = plan.warm_up_of(load)
            rounds = await session.measure(
                plan.variants,
                load,
                replace(work, num_requests=plan.requests_of(load)),
                num_repeats=plan.num_repeats,
                warm_up=replace(work, num_requests=num_warm_up) if num_warm_up else None,
            )
            results.append(load_result(load, rounds))
    return Report(command, plan.settings(), executors, scheduler, results)


def require_timeout(timeout_s: float | None) -> None:
    """Raise InvalidRequestError unless it is finite and positive, or None for no limit."""
    if timeout_s is not None and not 0 < timeout_s < math.inf:
        raise InvalidRequestError(f"--timeout {timeout_s}; accepted: a finite number above 0")


def _variants(
    target: str, policies: Sequence[str], baseline_target: str | None
) -> tuple[Variant, ...]:
    read = [policy_text(to_policy_spec(policy)) for policy in policies]
    if len(set(read)) < len(read):
        raise InvalidRequestError(f"policies {', '.join(policies)}; accepted: each once")
    baseline = (
        [] if baseline_target is None else [Variant(BASELINE, baseline_target, is_scheduled=False)]
    )
    named = [Variant(text, target, text) for text in policies] or [Variant(CURRENT, target)]
    if baseline_target == target:
        raise InvalidRequestError(f"--baseline-target {target} is the target itself")
    return (*baseline, *named)


def _loads(concurrency: Sequence[int], rate: Sequence[float]) -> tuple[Load, ...]:
    loads: list[Load] = [ClosedLoop(each) for each in concurrency]
    loads += [OpenLoop(each) for each in rate]
    return tuple(loads) or (ClosedLoop(1),)


def _num_users(load: Load) -> int:
    return load.concurrency if isinstance(load, ClosedLoop) else 1


def _scheduler_target(
    run_dir: Path | None, scheduler: str | None, *, is_needed: bool
) -> str | None:
    try:
        return find_scheduler(run_dir, scheduler)[1]
    except (ConnectionFailedError, InvalidRequestError):
        if is_needed or scheduler is not None:
            raise
        return None
