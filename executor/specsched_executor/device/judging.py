"""From the logits of a step to the tokens that it commits."""

from __future__ import annotations

import torch
from specsched_kernels.allocate_verify_lens import VerifyAllocation
from specsched_kernels.logit_rules import RuledRequests, apply_logit_rules, count_tokens
from specsched_kernels.rule_tables import LogitRuleTables
from specsched_kernels.slot_tables import SlotCommit, SlotTables, commit_slots
from specsched_kernels.verify_drafts import SamplingInputs, VerifyOutcome, verify_drafts

from specsched_executor.device.drafter import DeviceDrafter
from specsched_executor.device.packed import PackedArrays
from specsched_executor.device.recorded import RecordedDrafter
from specsched_executor.device.step_arrays import RequestInputs, StepInputs

__all__ = ["DraftJudge"]


class DraftJudge:
    """Rules logits, judges drafts by them and commits; all of it in the tables by slot."""

    def __init__(
        self,
        inputs: StepInputs,
        outputs: PackedArrays,
        tables: SlotTables,
        rules: LogitRuleTables,
        drafter: DeviceDrafter,
    ) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._tables = tables
        self._rules = rules
        self._drafter = drafter

    def judge(
        self,
        requests: RequestInputs,
        allocation: VerifyAllocation,
        logits: torch.Tensor,
        start_positions: torch.Tensor,
    ) -> VerifyOutcome:
        """Views of the step's outputs, filled; logits, float32 [m, V], are ruled in place."""
        num_requests = requests.slot_ids.shape[0]
        out = VerifyOutcome(
            token_ids=self._outputs["token_ids"][:num_requests],
            num_accepted=self._outputs["num_accepted"][:num_requests],
            faulty=self._outputs["faulty"][:num_requests],
        )
        inputs = SamplingInputs(
            logits=logits,
            logit_start_loc=allocation.logit_start_loc,
            verify_lens=allocation.verify_lens,
            output_positions=start_positions + requests.num_base_rows,
            draft_token_ids=self._tables.draft_token_ids,
            temperature=requests.temperature,
            top_k=requests.top_k,
            top_p=requests.top_p,
            seeds=requests.seeds,
            draft_distribution=self._drafter.distribution,
            slot_ids=requests.slot_ids,
            keeps_own_sample=requests.keeps_own_sample,
            min_p=requests.min_p,
        )
        apply_logit_rules(
            logits,
            self._rules,
            self._ruled(requests),
            inputs.logit_start_loc,
            inputs.output_positions,
            inputs.draft_token_ids,
        )
        verify_drafts(inputs, out=out)
        if isinstance(self._drafter, RecordedDrafter):
            lens = allocation.verify_lens
            self._drafter.decide(requests, self._tables, start_positions, lens, out)
        return out

    def commit(
        self, requests: RequestInputs, start_positions: torch.Tensor, outcome: VerifyOutcome
    ) -> None:
        """Advance the requests that sampled."""
        commit_slots(
            self._tables,
            SlotCommit(
                requests.slot_ids,
                requests.samples,
                start_positions,
                requests.num_base_rows,
                outcome.token_ids,
                outcome.num_accepted,
            ),
        )
        ruled = self._ruled(requests)
        count_tokens(self._rules, ruled, outcome.token_ids, outcome.num_accepted)

    def _ruled(self, requests: RequestInputs) -> RuledRequests:
        return RuledRequests(self._inputs.arrays["num_ruled"], requests.ruled, requests.slot_ids)
