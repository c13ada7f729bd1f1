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
from .report import SweepReport
from .state import FinishedRepeat, SweepState
from .verdict import BLOCK, judge

__all__ = ["run_sweep"]


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
    verdicts = [judge(_speeds(each.rounds), plan.policy) for each in results]
    report = Report(command, plan.settings(), executors, scheduler, results)
    measured = [each.load for each in results]
    missing = [load for load in plan.loads() if load not in measured]
    return SweepReport(report, verdicts, plan.half_width, missing)


def _require_followed(plan: SweepPlan, scheduler: SchedulerFacts) -> None:
    followed = (None, LaneRole.Name(LaneRole.LANE_ROLE_ACTIVE))
    if scheduler.lane_role not in followed:
        raise InvalidRequestError(
            f"{plan.scheduler_target} is {scheduler.lane_role}: its executor follows another"
            " scheduler, so that its policies decide nothing; `specsched promote` changes that"
        )


def _require_known(plan: SweepPlan, scheduler: SchedulerFacts) -> None:
    name = to_policy_spec(plan.policy).name
    if name not in scheduler.policies:
        raise InvalidRequestError(
            f"--policy {plan.policy}; accepted by {plan.scheduler_target}:"
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

        First the fewest repeats of every load, then block by block of the least precise one.
        """
        warm: dict[ClosedLoop, int] = {}
        while (load := self._next()) is not None:
            if load not in warm:
                warm = {load: await self._warm_up(load)}
            self._state.add(await self._repeat(load, warm[load]))
        return [load_result(each, self._rounds(each)) for each in self._measured_loads()]

    def _next(self) -> ClosedLoop | None:
        """The load whose turn it is; None: all is measured, or time is over."""
        if time.monotonic() >= self._deadline_s:
            return None
        loads = self._plan.loads()
        for load in loads:
            num_repeats = len(self._state.repeats(load))
            if num_repeats < self._plan.min_repeats or num_repeats % BLOCK:
                return load
        missing = [load for load in loads if not self._is_done(load)]
        return max(missing, key=self._half_width) if missing else None

    def _is_done(self, load: ClosedLoop) -> bool:
        num_repeats = len(self._state.repeats(load))
        if num_repeats >= self._plan.max_repeats:
            return True
        return self._half_width(load) <= self._plan.half_width

    def _half_width(self, load: ClosedLoop) -> float:
        return judge(_speeds(self._rounds(load)), self._plan.policy).half_width

    def _measured_loads(self) -> list[ClosedLoop]:
        return [each for each in self._plan.loads() if len(self._state.repeats(each)) >= BLOCK]

    async def _warm_up(self, load: ClosedLoop) -> int:
        """Requests of a round, after a round of each setting that does not count."""
        seconds = self._plan.round_seconds
        if seconds is None:
            work = replace(self._work, num_requests=load.concurrency)
            await self._session.warm_up(self._variants, load, work)
            return self._plan.requests_of(load)
        # A steady round begins long after its policy was set. Only learning takes longer.
        work = replace(self._work, num_requests=2 * load.concurrency + 1, is_steady=True)
        ran = await self._session.warm_up((self._variants[0], self._variants[-1]), load, work)
        if begun := self._state.repeats(load):
            return begun[0].num_requests or self._plan.requests_of(load)
        return load.concurrency + self._requests_within(seconds, ran[self._variants[0].name])

    def _requests_within(self, seconds: float, ran: RoundResult) -> int:
        """Requests that end while a steady round fills up and for `seconds` after that."""
        window = ran.window
        filling_s = 0.0 if window is None else window.start_s - window.begun_s
        num_tokens = (seconds + filling_s) * ran.tokens_per_s
        return max(1, round(num_tokens / (self._work.sampling.max_tokens or 1)))

    async def _repeat(self, load: ClosedLoop, num_requests: int) -> FinishedRepeat:
        repeat = len(self._state.repeats(load))
        work = replace(self._work, num_requests=num_requests)
        if self._plan.round_seconds is not None:
            work = replace(work, is_steady=True, first_index=repeat * num_requests)
        title = f"{load}, repeat {repeat + 1} of {self._plan.min_repeats}"
        title += f" to {self._plan.max_repeats}"
        rounds = await self._session.run_repeat(self._variants, load, work, repeat, title)
        for name, one in rounds.items():
            if failed := [record for record in one.records if record.error is not None]:
                raise ServerError(
                    f"{load}, {name}: {len(failed)} requests failed, the first with:"
                    f" {failed[0].error}"
                )
        return FinishedRepeat(load, repeat, rounds, num_requests)

    def _rounds(self, load: ClosedLoop) -> dict[str, list[RoundResult]]:
        repeats = self._state.repeats(load)
        # A block is judged whole: time may have been over in the middle of one.
        repeats = repeats[: len(repeats) // BLOCK * BLOCK]
        names = [variant.name for variant in self._variants]
        return {name: [each.rounds[name] for each in repeats] for name in names}


def _speeds(rounds: Mapping[str, Sequence[RoundResult]]) -> dict[str, list[float]]:
    return {name: [one.tokens_per_s for one in each] for name, each in rounds.items()}
