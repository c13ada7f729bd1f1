"""Runs a sweep: repeats under each load until every ratio is known well enough."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specsched_protocol.v1.scheduler_pb2 import LaneRole

from specsched_client._errors import InvalidRequestError, ServerError
from specsched_client._policy import to_policy_spec
from specsched_client.bench.load import ClosedLoop
from specsched_client.bench.report import LoadResult, Report, load_result
from specsched_client.bench.sender import Workload
from specsched_client.bench.server_facts import SchedulerFacts, ask_scheduler
from specsched_client.bench.session import Progress, Session, Variant
from specsched_client.bench.summary import RoundResult

from .plan import SweepPlan
from .race import PAIR, settings_behind
from .report import SweepReport
from .state import FinishedRepeat, SweepState
from .verdict import BLOCK, Verdict, judge

__all__ = ["judge_rounds", "run_sweep"]


async def run_sweep(
    plan: SweepPlan, state_file: Path, progress: Progress, *, command: Sequence[str]
) -> SweepReport:
    """Measure what the state file does not hold yet. Raises SpecschedError.

    Interrupted, it leaves every finished repeat in the state file and the policy as it was.
    """
    scheduler = await ask_scheduler(plan.scheduler_target)
    _require_followed(plan, scheduler)
    _require_known(plan, scheduler)
    variants = plan.variants(scheduler.max_draft_tokens)
    opening = Session.open(
        variants, plan.scheduler_target, progress, num_processes=plan.num_processes
    )
    async with opening as session:
        executors = await session.executors()
        work = await session.workload(
            plan.target,
            plan.prompts,
            plan.sampling,
            seed=plan.seed,
            timeout_s=plan.timeout_s,
        )
        identity = plan.identity(variants, executors, scheduler)
        names = [variant.name for variant in variants]
        with SweepState.open(state_file, identity, names) as state:
            results = await Sweep(plan, variants, session, work, state).run()
    if not results:
        raise InvalidRequestError(
            f"--max-seconds {plan.max_seconds}: over before any load had {BLOCK} repeats; those"
            f" that there are stay in {state_file.parent}, and the same command goes on"
        )
    verdicts = [judge_rounds(plan, each.rounds) for each in results]
    report = Report(command, plan.settings(variants), executors, scheduler, results)
    measured = [each.load for each in results]
    missing = [load for load in plan.loads() if load not in measured]
    return SweepReport(report, verdicts, plan.half_width, missing)


def judge_rounds(plan: SweepPlan, rounds: Mapping[str, Sequence[RoundResult]]) -> Verdict:
    """The verdict on the rounds of a load, whole blocks of them."""
    speeds = _speeds(rounds)
    return judge(speeds, plan.policy, _behind(plan, speeds))


def _behind(plan: SweepPlan, speeds: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    return settings_behind(speeds, plan.policy, every_setting=plan.every_setting)


def _speeds(rounds: Mapping[str, Sequence[RoundResult]]) -> dict[str, list[float]]:
    return {name: [one.tokens_per_s for one in each] for name, each in rounds.items()}


def _require_followed(plan: SweepPlan, scheduler: SchedulerFacts) -> None:
    followed = (None, LaneRole.Name(LaneRole.LANE_ROLE_ACTIVE))
    if scheduler.lane_role not in followed:
        raise InvalidRequestError(
            f"{plan.scheduler_target} is {scheduler.lane_role}: its executor follows another"
            " scheduler, so that its policies decide nothing; `specsched promote` changes that"
        )


def _require_known(plan: SweepPlan, scheduler: SchedulerFacts) -> None:
    options = [("policy", plan.policy), *(("against", policy) for policy in plan.against)]
    for option, policy in options:
        if to_policy_spec(policy).name not in scheduler.policies:
            raise InvalidRequestError(
                f"--{option} {policy}; accepted by {plan.scheduler_target}:"
                f" {', '.join(scheduler.policies)}"
            )


class Sweep:
    """The loop over repeats."""

    def __init__(
        self,
        plan: SweepPlan,
        variants: Sequence[Variant],
        session: Session,
        work: Workload,
        state: SweepState,
    ) -> None:
        self._plan = plan
        self._variants = variants
        self._session = session
        self._work = work
        self._state = state
        seconds = math.inf if plan.max_seconds is None else plan.max_seconds
        self._deadline_s = time.monotonic() + seconds

    async def run(self) -> list[LoadResult]:
        """Repeats that are there and as many as are missing; loads that have a block of them.

        First the fewest repeats of every load, then block by block of the load of which a second
        of measuring promises most.
        """
        warm: ClosedLoop | None = None
        while (load := self._next()) is not None:
            if load != warm:
                await self._warm_up(load)
                warm = load
            self._state.add(await self._repeat(load))
        return [load_result(each, self._rounds(each)) for each in self._measured_loads()]

    def _next(self) -> ClosedLoop | None:
        """The load whose turn it is; None: all is measured, or time is over."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            return None
        loads = self._plan.loads()
        for load in loads:
            num_repeats = len(self._state.repeats(load))
            if num_repeats < self._plan.min_repeats or num_repeats % BLOCK:
                return load
        missing = [load for load in loads if not self._is_done(load)]
        # A block is judged whole: one that will not be whole is of no use.
        fitting = [load for load in missing if self._block_s(load) <= left_s]
        return max(fitting, key=self._promise) if fitting else None

    def _is_done(self, load: ClosedLoop) -> bool:
        num_repeats = len(self._state.repeats(load))
        if num_repeats >= self._plan.max_repeats:
            return True
        return self._verdict(load).half_width <= self._plan.half_width

    def _promise(self, load: ClosedLoop) -> float:
        """By how much a second of the next block narrows the widest interval, about.

        Intervals narrow as 1 / sqrt(repeats).
        """
        num_repeats = len(self._state.repeats(load))
        gain = 1 - math.sqrt(num_repeats / (num_repeats + BLOCK))
        return self._verdict(load).half_width * gain / self._block_s(load)

    def _block_s(self, load: ClosedLoop) -> float:
        """Seconds that the next block of repeats takes, as long as the last repeat did."""
        last = self._state.repeats(load)[-1].rounds
        return BLOCK * sum(last[each].duration_s for each in self._raced(load))

    def _raced(self, load: ClosedLoop) -> list[str]:
        """Names of the settings that the next repeat measures."""
        repeats = self._state.repeats(load)
        if len(repeats) % PAIR:
            return list(repeats[-1].rounds)
        behind = _behind(self._plan, _speeds(self._rounds_of(repeats))) if repeats else ()
        return [variant.name for variant in self._variants if variant.name not in behind]

    def _verdict(self, load: ClosedLoop) -> Verdict:
        return judge_rounds(self._plan, self._rounds(load))

    def _measured_loads(self) -> list[ClosedLoop]:
        return [each for each in self._plan.loads() if len(self._state.repeats(each)) >= BLOCK]

    async def _warm_up(self, load: ClosedLoop) -> None:
        """Rounds that do not count: one of each setting, of steady ones one of the schedule."""
        if self._plan.steady is None:
            work = replace(self._work, num_requests=load.concurrency)
            await self._session.warm_up(self._variants, load, work)
        else:
            # A steady round begins after its policy was set. Only learning takes longer.
            work = replace(self._work, steady=self._plan.steady)
            await self._session.warm_up(self._variants[-1:], load, work)

    async def _repeat(self, load: ClosedLoop) -> FinishedRepeat:
        before, raced = self._state.repeats(load), self._raced(load)
        variants = [variant for variant in self._variants if variant.name in raced]
        title = f"{load}, repeat {len(before) + 1} of {self._plan.min_repeats}"
        title += f" to {self._plan.max_repeats}"
        work = self._work_of(load, before)
        rounds = await self._session.run_repeat(variants, load, work, len(before), title)
        for name, one in rounds.items():
            if failed := [record for record in one.records if record.error is not None]:
                raise ServerError(
                    f"{load}, {name}: {len(failed)} requests failed, the first with:"
                    f" {failed[0].error}"
                )
        begun = [one.window.num_requests for one in rounds.values() if one.window is not None]
        num_requests = max(begun, default=work.num_requests)
        return FinishedRepeat(load, len(before), rounds, num_requests)

    def _work_of(self, load: ClosedLoop, before: Sequence[FinishedRepeat]) -> Workload:
        """Of the rounds of the next repeat; steady ones go on behind those of all before."""
        if self._plan.steady is None:
            return replace(self._work, num_requests=self._plan.requests_of(load))
        first_index = sum(each.num_requests for each in before)
        return replace(self._work, steady=self._plan.steady, first_index=first_index)

    def _rounds(self, load: ClosedLoop) -> dict[str, list[RoundResult]]:
        """Of whole blocks only: time may have been over in the middle of one."""
        repeats = self._state.repeats(load)
        return self._rounds_of(repeats[: len(repeats) // BLOCK * BLOCK])

    def _rounds_of(self, repeats: Sequence[FinishedRepeat]) -> dict[str, list[RoundResult]]:
        names = [variant.name for variant in self._variants]
        return {
            name: [each.rounds[name] for each in repeats if name in each.rounds] for name in names
        }
