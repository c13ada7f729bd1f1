"""One step after the other: plan, verify, commit, draft.

The order within step t: form batch t, read plan t, release the confidences of the drafts that t
verifies and ask for plan t + 1 with them, run the target, commit, draft, withhold the new
confidences, report. So plan t + 1 has a whole forward pass to arrive.
"""

from __future__ import annotations

from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.blocks import BlockPool
from specsched_executor.engine.confidence_gate import ConfidenceGate
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.delivery import Delivery
from specsched_executor.engine.drafting import Drafting
from specsched_executor.engine.inputs import BatchTensors
from specsched_executor.engine.request_loop import RequestLoop
from specsched_executor.engine.residency import Residency
from specsched_executor.engine.slot_columns import SlotColumns
from specsched_executor.engine.target_pass import TargetPass

__all__ = ["StepLoop"]


class StepLoop(RequestLoop):
    """Steps that do not overlap."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        gate: ConfidenceGate,
        target_pass: TargetPass,
        drafting: Drafting,
        residency: Residency,
        columns: SlotColumns,
        pool: BlockPool,
        delivery: Delivery,
    ) -> None:
        super().__init__(
            config=config,
            gate=gate,
            residency=residency,
            columns=columns,
            pool=pool,
            delivery=delivery,
        )
        self._target_pass = target_pass
        self._drafting = drafting

    def _run(self, batch: StepBatch) -> None:
        allowance = self._plans.read(batch)
        self._plans.observe_drafts(batch)
        self._plans.ask_for_next(batch, allowance)
        tensors = BatchTensors.of(batch, self._columns, self._plans.weights(batch, allowance))
        outcome = self._target_pass.run(batch, tensors, allowance)
        self._drafting.observe(batch, outcome)
        self._commit(batch, outcome)
        drafts = self._drafting.draft(batch, outcome, allowance.next_draft_tokens)
        self._gate.withhold(drafts.rows)
        self._finish_step(batch, outcome, drafts, allowance)
