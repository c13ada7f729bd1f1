"""Everything that is learned of one executor, from its reports and confidences. Pure: no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specsched_scheduler.decision.calibration import GREEDY, SAMPLED, calibrate
from specsched_scheduler.decision.codes import Feature, PolicyCode
from specsched_scheduler.decision.cost import CostModel
from specsched_scheduler.decision.draft_length import DraftLength, Survivals
from specsched_scheduler.decision.finished import FinishedSteps
from specsched_scheduler.learning.calibration.online import OnlineCalibrator
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.cost.corrector import CostCorrector
from specsched_scheduler.learning.cost.samples import LastStep
from specsched_scheduler.learning.document import CostPart, Entry, calibration_part
from specsched_scheduler.learning.draft_length_part import DraftLengthPart
from specsched_scheduler.learning.pairing import Classified, DraftedSteps, Pairing

__all__ = ["ExecutorKind", "Learner"]

_MIN_NEW_SAMPLES = 32
"""Steps before the next fit of the cost."""


@dataclass(frozen=True, slots=True)
class ExecutorKind:
    """What learned state applies to. cost_fingerprint: of the profile, for the cost alone."""

    model: str
    drafter: str
    max_draft_tokens: int
    cost_fingerprint: str = ""


class Learner:
    """One thread. calibrator, corrector, pairing, draft_length: the parts, to be looked at.

    table, calibration: what decisions go by, as of the last update and without what the policy
    leaves out. All of it goes on being learned.

    on_paired: told of drafts with their outcome, before they are learned from, frozen or not.
    start: where confidences were judged before. is_frozen: keep what was learned as it is.
    policy: that steps are decided by. left_out: Features that it leaves out.
    """

    def __init__(
        self,
        kind: ExecutorKind,
        profile: CostModel,
        start: Calibration | None = None,
        policy: PolicyCode = PolicyCode.THROUGHPUT,
        left_out: int = Feature.NONE,
    ) -> None:
        self.kind = kind
        self.is_frozen = False
        self.on_paired: Callable[[Classified], object] = _ignore
        self.pairing = Pairing()
        self.calibrator = OnlineCalibrator(kind.max_draft_tokens, start=start)
        self.corrector = CostCorrector(profile)
        self._policy, self._left_out = policy, left_out
        self._price()
        self._survivals = Survivals(kind.max_draft_tokens)
        self._seen_by = self.calibrator.calibration
        self._seen_by_table = self._seen_by.compile()
        self.draft_length = self._new_draft_length()
        self._draft_length_of = {(policy, left_out): self.draft_length}
        self._last_step = LastStep()
        self._num_new_samples = 0

    def observe(self, steps: FinishedSteps, drafted: DraftedSteps) -> None:
        """Take in finished steps, and confidences of drafts that these or later ones verified."""
        if not self.is_frozen:
            self._see(drafted)
        self.pairing.add(drafted)
        paired = self.pairing.take(steps)
        if paired is not None:
            self.on_paired(paired)
        self.draft_length.follow(steps, self.table, is_frozen=self.is_frozen)
        if self.is_frozen:
            return
        if paired is not None:
            self.calibrator.observe(*paired)
        samples = self._last_step.samples(steps)
        self._num_new_samples += len(samples)
        self.corrector.observe(samples)

    def update(self) -> bool:
        """Learn from what was observed; whether decisions may come out otherwise."""
        if self.is_frozen:
            return False
        changed = self.calibrator.update()
        if self._num_new_samples >= _MIN_NEW_SAMPLES:
            self._num_new_samples = 0
            changed |= self.corrector.update()
        if changed:
            self._price()
        return changed

    def probe_rows(self) -> int:
        """Rows of a step whose cost should be seen again, 0 for none now."""
        return 0 if self.is_frozen else self.corrector.probe_rows()

    def set_profile(self, profile: CostModel, fingerprint: str) -> None:
        """Go by another profile: what was learned of the cost was relative to the last one."""
        kind = self.kind
        self.kind = ExecutorKind(kind.model, kind.drafter, kind.max_draft_tokens, fingerprint)
        self.corrector = CostCorrector(profile)
        self._price()
        self.draft_length.begin(self.table)
        self._last_step = LastStep()

    @property
    def calibration(self) -> Calibration:
        """See the class."""
        if self._left_out & Feature.CALIBRATION:
            return Calibration.identity(self.kind.max_draft_tokens)
        return self.calibrator.calibration

    def set_policy(self, policy: PolicyCode, left_out: int = Feature.NONE) -> None:
        """Decide by another policy, with what was learned under it before.

        What drafts brought under the last one says little; under the same with nothing left out,
        it is where another begins.
        """
        self._policy, self._left_out = policy, left_out
        self._price()
        known = self._draft_length_of.get((policy, left_out))
        if known is None:
            known = self._draft_length_of[policy, left_out] = self._new_draft_length()
            whole = self._draft_length_of.get((policy, Feature.NONE))
            if whole is not None:
                known.restore(whole.loads(), self.table)
        self.draft_length = known

    def entry(self) -> Entry:
        """What was learned, to be kept or handed over."""
        kind, progress = self.kind, self.calibrator.progress
        num_rows = tuple(each.num_rows for each in progress)
        survivals = self._survivals.quantiles()
        loads = [] if self._left_out else self.draft_length.loads()
        return Entry(
            model=kind.model,
            drafter=kind.drafter,
            max_draft_tokens=kind.max_draft_tokens,
            cost_fingerprint=kind.cost_fingerprint,
            calibration=calibration_part(self.calibrator.calibration, num_rows),
            cost=CostPart.of(self.corrector.correction()) if self.corrector.has_learned else None,
            draft_length=DraftLengthPart.of(self._policy, loads, survivals) if loads else None,
        )

    def knows_more(self, entry: Entry) -> bool:
        """Whether more drafts taught this learner than taught the entry."""
        return sum(each.num_rows for each in self.calibrator.progress) > sum(entry.num_rows)

    def restore(self, entry: Entry) -> None:
        """Go on from what was learned elsewhere.

        The cost only where it was of this profile; draft lengths, which rest on the cost, only
        where it was of this policy too, with nothing left out, but how sure drafts are in any case.
        """
        self.calibrator.restore(entry.learned_calibration(), entry.num_rows)
        if entry.draft_length is not None and entry.draft_length.survivals:
            self._survivals.restore(np.array(entry.draft_length.survivals))
            self.draft_length.begin(self.table)
        if entry.cost_fingerprint != self.kind.cost_fingerprint:
            return
        if entry.cost is not None:
            self.corrector.restore(entry.cost.correction())
            self._price()
        lengths = entry.draft_length
        is_of_policy = lengths is not None and lengths.policy == self._policy.name.lower()
        if lengths is not None and is_of_policy and not self._left_out:
            self.draft_length.restore(lengths.states(), self.table)

    def _see(self, drafted: DraftedSteps) -> None:
        """How sure these drafts are, as decisions see it."""
        rows = self._survivals.choose(len(drafted.slot_id))
        if not len(rows):
            return
        if self._seen_by is not self.calibrator.calibration:
            self._seen_by = self.calibrator.calibration
            self._seen_by_table = self._seen_by.compile()
        of_class = np.where(drafted.is_greedy[rows], GREEDY, SAMPLED)
        self._survivals.see(calibrate(self._seen_by_table, of_class, drafted.confidence[rows]))

    def _new_draft_length(self) -> DraftLength:
        draft_length = DraftLength(self.kind.max_draft_tokens, self._survivals)
        draft_length.begin(self.table)
        return draft_length

    def _price(self) -> None:
        is_corrected = not self._left_out & Feature.CORRECTION
        model = self.corrector.model() if is_corrected else self.corrector.profile
        self.table = model.compile()
        if self._left_out & Feature.CONTEXT:
            self.table = self.table._replace(context_ms_per_token=0.0)


def _ignore(_: object) -> None:
    """Nobody wants to know."""
