"""One attachment's planner, spoken to in the words of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict

import structlog
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.decision.cost import CostModel, CostTable
from specsched_scheduler.decision.finished import FinishedSteps, finished_steps, reports_of
from specsched_scheduler.decision.wire import cost_model_from_message, policy_to_message
from specsched_scheduler.learning.document import LearnedState, read_state, write_state
from specsched_scheduler.learning.errors import StateError
from specsched_scheduler.learning.learner import Learner
from specsched_scheduler.learning.wire import calibration_from_message
from specsched_scheduler.planner import Planner, PlannerConfig, RecentDecision
from specsched_scheduler.policies import BuiltPolicy
from specsched_scheduler.telemetry import AttachmentTelemetry
from specsched_scheduler.trace import StepRecorder, trace_metadata

from .learned import LearnedStates
from .learning import LearningThread
from .learning_messages import executor_kind
from .selection import select_policy
from .transports import StepTransport
from .wire import decision_message

__all__ = ["Planning"]

_log = structlog.get_logger(__name__)

_MAX_REMEMBERED_POLICIES = 64
_MAX_SILENCE_S = 10.0
"""Of a planner, which beats ten times a second: a machine that stalls is silent for less."""


class Planning:
    """Plans the steps of one executor from now on until closed, and learns from them.

    Lives on the server's event loop. learned: what is known of executors of its kind, to begin
    with. open_recorder: called once it is sure that the executor is not refused. Raises
    InvalidRequestError for an impossible cost profile in `hello`, StateError for an impossible
    calibration.
    """

    def __init__(
        self,
        transport: StepTransport,
        hello: pb.Hello,
        policy: BuiltPolicy,
        config: PlannerConfig,
        learned: LearnedStates,
        *,
        open_recorder: Callable[[], StepRecorder] | None = None,
    ) -> None:
        self.transport = transport
        self._policies = {0: policy}
        self._max_draft_tokens = hello.model.max_draft_tokens
        model = cost_model_from_message(hello.cost, self._max_draft_tokens)
        self._has_model = model.has_model
        selection = select_policy(policy, policy_id=0)
        kind = self._kind = executor_kind(hello)
        calibration = calibration_from_message(hello.calibration, kind.max_draft_tokens)
        self._planner = Planner(transport.regions, selection, model, config)
        learner = Learner(kind, model, policy=selection.code, left_out=selection.left_out)
        self.learning = LearningThread(self._planner, learner)
        self.telemetry = AttachmentTelemetry(self._planner, learner)
        self.learning.on_followed = self.telemetry.follow
        self._hello = hello
        self._recorder = None if open_recorder is None else open_recorder()
        if self._recorder is not None:
            self._recorder.describe(trace_metadata(hello, policy))
            self.learning.on_reports = self._record
        self.learning.set_frozen(is_frozen=learned.is_frozen)
        known = learned.of(kind)
        if known is not None:
            self.learning.restore(known)
        elif hello.HasField("calibration"):
            self.learning.begin_with(calibration)
        self._planner.start()

    async def close(self) -> None:
        """End learner and planner; its last decision is made or never."""
        await asyncio.to_thread(self.learning.stop)
        await asyncio.to_thread(self._planner.stop)
        if self._recorder is not None:
            self._record(finished_steps([]))
            await asyncio.to_thread(self._recorder.close)

    @property
    def policy(self) -> BuiltPolicy:
        """The policy of the next decision."""
        return self._policies[max(self._policies)]

    def set_policy(self, policy: BuiltPolicy) -> None:
        """Plan by `policy` from the next decision on."""
        policy_id = max(self._policies) + 1
        self._policies[policy_id] = policy
        while len(self._policies) > _MAX_REMEMBERED_POLICIES:
            del self._policies[min(self._policies)]
        selection = select_policy(policy, policy_id=policy_id)
        self.learning.set_policy(selection)
        if self._recorder is not None:
            self._recorder.describe(trace_metadata(self._hello, policy))

    def set_cost(self, cost: plan_pb2.CostModel) -> None:
        """Price steps by `cost` from the next decision on; InvalidRequestError if impossible."""
        model = cost_model_from_message(cost, self._max_draft_tokens)
        self._has_model = model.has_model
        self.learning.set_profile(model, cost.fingerprint)

    def learned_state(self) -> str:
        """What was learned of this executor, as a document; may wait for a fit."""
        return write_state(LearnedState(entries=(self.learning.entry(),)))

    def take_state(self, document: str) -> None:
        """Go on from what another scheduler learned of it, if that is more; may wait for a fit.

        Raises StateError for a document that is none, or that knows nothing of its kind.
        """
        entry = LearnedStates(read_state(document), is_frozen=True).of(self._kind)
        if entry is None:
            raise StateError(f"nothing is in it of {self._kind}")
        is_taken = self.learning.take_over(entry)
        _log.info("offered what another scheduler learned", taken=is_taken)

    def _record(self, finished: FinishedSteps) -> None:
        if self._recorder is not None:
            steps, num_dropped = self._planner.drain_steps()
            self._recorder.observe(steps, reports_of(finished), num_dropped)

    @property
    def model_state(self) -> plan_pb2.ModelState.ValueType:
        """Whether steps can be priced."""
        return plan_pb2.MODEL_STATE_OK if self._has_model else plan_pb2.MODEL_STATE_NO_MODEL

    @property
    def last_step_id(self) -> int:
        """Step of the newest decision."""
        return self._planner.last_step_id

    def counters(self) -> pb.PlannerCounters:
        """Totals since the executor attached."""
        totals = asdict(self._planner.counters())
        feed = self.transport.feed
        if feed is not None:  # what it refuses never reaches the planner
            totals["num_invalid_requests"] += feed.num_invalid_requests
            totals["num_lost_reports"] += feed.num_invalid_reports
        names = [field.name for field in pb.PlannerCounters.DESCRIPTOR.fields]
        return pb.PlannerCounters(**{name: totals[name] for name in names})

    def policy_failures(self) -> pb.PolicyFailures | None:
        """Plan requests that a policy failed at, and the newest failure; None where none did."""
        failure = self._planner.newest_failure
        if failure is None:
            return None
        policy = self._policies.get(failure.policy_id)
        return pb.PolicyFailures(
            num_requests=self._planner.counters().num_policy_errors,
            policy=policy_to_message(policy) if policy else None,
            error=failure.error,
        )

    @property
    def is_deciding(self) -> bool:
        """Whether the planner's thread lives and does not hang."""
        return self._planner.is_running and self._planner.silent_s < _MAX_SILENCE_S

    @property
    def table(self) -> CostTable:
        """What steps are priced by."""
        return self._planner.table

    def latencies(self) -> list[tuple[float, int]]:
        """(seconds from seeing a request to its decision, how many took so long)."""
        return self._planner.latencies()

    def learned_cost(self) -> tuple[CostModel, bool]:
        """The profile, and whether it is used as corrected; may wait for a fit."""

        def read(learner: Learner) -> tuple[CostModel, bool]:
            corrector = learner.corrector
            return corrector.profile, corrector.has_learned and corrector.is_worth_it

        return self.learning.look(read)

    @property
    def num_lost_confidences(self) -> int:
        """Steps whose confidences could not be kept for learning."""
        return self._planner.num_lost_confidences

    def newest(self) -> RecentDecision | None:
        """The newest decision, if there is any."""
        recent = self._planner.recent_decisions(max_decisions=1)
        return recent[-1] if recent else None

    def message(self, recent: RecentDecision) -> plan_pb2.Decision:
        """A decision for watchers, with the policy it was made by."""
        policy = self._policies.get(recent.decision.policy_id)
        spec = policy_to_message(policy) if policy else plan_pb2.PolicySpec()
        return decision_message(recent.decision, spec)
