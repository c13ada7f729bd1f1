"""Launches steps on the device and collects what came of them, one step apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from specsched_protocol.plan import ConfidenceRows

from specsched_executor.core import TargetOutput
from specsched_executor.device.device_step import DeviceStep, StepShape
from specsched_executor.device.graphs import StepGraphs
from specsched_executor.device.packed import PackedArrays
from specsched_executor.device.prior import PriorConfidence
from specsched_executor.device.slot_rules import SlotRules
from specsched_executor.device.staging import StagedStep, StagingArea
from specsched_executor.device.timeline import Timeline, timeline_for
from specsched_executor.device.told_logprobs import ToldLogprobs, WantedLogprobs
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.drafting import Calibrations, NewDrafts
from specsched_executor.engine.fallback import Allowance
from specsched_executor.engine.filling import budget_of_size
from specsched_executor.engine.logprobs import are_finite
from specsched_executor.engine.slot_columns import SlotColumns, Slots
from specsched_executor.engine.target_pass import PassOutcome

__all__ = ["DeviceRunner", "LaunchedStep"]

_NUM_BUFFERS = 2
"""One step is launched while the outputs of the one before are still to be read."""
_NO_OUTPUT = TargetOutput(torch.empty(0, 0))
"""Logits stay on the device."""


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that runs on the device, or has run.

    token_bounds: the most each request may commit in it, and what it did once that was collected;
    draft_lens: drafts made for each; [R].
    """

    batch: StepBatch
    allowance: Allowance
    token_bounds: Slots
    draft_lens: Slots
    padded_rows: int
    outputs: PackedArrays
    told: ToldLogprobs | None
    timeline: Timeline


class DeviceRunner:
    """The engine's only way to the device. calibrations: what its drafts are ranked by now, asked
    once per step."""

    def __init__(
        self,
        step: DeviceStep,
        graphs: StepGraphs,
        columns: SlotColumns,
        calibrations: Calibrations = lambda: None,
    ) -> None:
        is_pinned = step.device.type == "cuda"
        self._step = step
        self._graphs = graphs
        self._columns = columns
        self._calibrations = calibrations
        layout = step.outputs.layout
        host = torch.device("cpu")
        self._staging = [StagingArea(step.sizes, is_pinned=is_pinned) for _ in range(_NUM_BUFFERS)]
        self._outputs = [
            PackedArrays(layout, host, is_pinned=is_pinned) for _ in range(_NUM_BUFFERS)
        ]
        # A step's durations may begin with the end of the one before.
        self._timelines = [timeline_for(step.device) for _ in range(_NUM_BUFFERS + 1)]
        self._num_launched = 0
        self._prior = PriorConfidence(step.sizes.max_draft_tokens)
        self._rules = SlotRules(step.rules, columns)

    @property
    def drafts(self) -> bool:
        """Whether the device drafts."""
        return not self._step.drafter.is_idle

    def launch(
        self,
        batch: StepBatch,
        allowance: Allowance,
        weights: npt.NDArray[np.float32],
        draft_lens: Slots,
        previous: LaunchedStep | None = None,
    ) -> LaunchedStep:
        """Queue the step; nothing waits. draft_lens: drafts wanted for each request at its end.
        previous: the step launched before it, where that was not collected yet.

        A second launch is fine, a third needs the first to be collected.
        """
        index = self._num_launched % _NUM_BUFFERS
        staging, outputs = self._staging[index], self._outputs[index]
        timeline = self._timelines[self._num_launched % len(self._timelines)]
        timeline.follow(None if previous is None else previous.timeline)
        self._num_launched += 1
        limits = np.minimum(batch.num_draft_tokens, allowance.max_verify_len)
        most = max(0, min(int(limits.sum()), batch.max_draft_rows))
        staged = staging.fill(
            batch,
            self._columns,
            weights=weights,
            budget=min(self._budget(batch, allowance), most),
            draft_limits=limits,
            next_draft_lens=draft_lens,
            prior=self._prior.mean,
            ruled=self._rules.prepare(batch),
            calibration=self._calibrations(),
        )
        self._step.inputs.arrays.copy_from(staging.arrays, staged.num_bytes)
        timeline.mark_start()
        shape, told = self._verify(batch, staged)
        timeline.mark_verified()
        longest = int(draft_lens.max(initial=0))
        if longest:
            self._graphs.draft(staged.num_requests, longest, draws=self._draws(batch))
        timeline.mark_drafted()
        outputs.copy_from(self._step.outputs)
        told = None if told is None else told.to_host()
        timeline.mark_end()
        return LaunchedStep(
            batch=batch,
            allowance=allowance,
            token_bounds=np.where(batch.samples, limits + 1, 0),
            draft_lens=draft_lens,
            padded_rows=shape.padded_rows,
            outputs=outputs,
            told=told,
            timeline=timeline,
        )

    def _budget(self, batch: StepBatch, allowance: Allowance) -> int:
        """That of the plan, fitted to the captured size that runs the step where it wants that."""
        slots, budget = batch.slot_ids, allowance.budget
        if not allowance.fills_size or self._columns.wants_logprobs[slots].any():
            return budget
        has_prompts = not self._columns.is_anchor_on_device[slots].all()
        return budget_of_size(
            budget,
            batch.num_other_tokens,
            allowance.planned_other_tokens,
            self._graphs.sizes_in_use(has_prompts=has_prompts),
        )

    def _draws(self, batch: StepBatch) -> bool:
        """Whether any draft is drawn from a distribution, rather than the likeliest."""
        if self._step.drafter.distribution is None:
            return False
        return bool(self._columns.draft_temperature[batch.slot_ids[batch.samples]].any())

    def _verify(
        self, batch: StepBatch, staged: StagedStep
    ) -> tuple[StepShape, ToldLogprobs | None]:
        wanted = None
        if self._columns.wants_logprobs[batch.slot_ids].any():
            wanted = WantedLogprobs.of(batch)
        rows, requests, has_prompts = staged.num_rows, staged.num_requests, staged.has_prompts
        if wanted is not None:
            return self._graphs.verify_telling(rows, requests, wanted, has_prompts=has_prompts)
        return self._graphs.verify(rows, requests, has_prompts=has_prompts), None

    def collect(self, launched: LaunchedStep) -> tuple[PassOutcome, NewDrafts]:
        """Wait for a step's outputs: what was committed and what was drafted."""
        launched.timeline.wait()
        batch, outputs = launched.batch, launched.outputs
        verify_lens, num_accepted, faulty, token_ids = (
            outputs.numpy(name)[: len(batch.slot_ids)].copy()
            for name in ("verify_lens", "num_accepted", "faulty", "token_ids")
        )
        told = launched.told
        prompt_logprobs = {} if told is None else told.of_prompts()
        for index, values in prompt_logprobs.items():
            faulty[index] |= not are_finite(values)
        outcome = PassOutcome(
            verify_lens=verify_lens,
            token_ids=token_ids,
            num_accepted=num_accepted,
            faulty=faulty,
            num_rows=batch.num_other_tokens + int(verify_lens.sum()),
            output=_NO_OUTPUT,
            verify_ms=launched.timeline.verify_ms,
            logprobs={} if told is None else told.of_outputs(num_accepted),
            prompt_logprobs=prompt_logprobs,
            padded_num_rows=launched.padded_rows,
        )
        return outcome, self._new_drafts(launched)

    def settle(self) -> None:
        """Wait until nothing that was launched runs any more: its buffers may be used again.

        Raises RuntimeError where the device does no more work for this process, as after an illegal
        access to its memory.
        """
        if self._step.device.type == "cuda":
            torch.cuda.synchronize(self._step.device)

    def _new_drafts(self, launched: LaunchedStep) -> NewDrafts:
        """Confidences leave the pinned memory here, for the gate to keep."""
        batch, lens = launched.batch, launched.draft_lens
        chosen = slice(None) if lens.all() else np.flatnonzero(lens)
        confidence, ranked = (
            launched.outputs.numpy(name)[: len(lens)][chosen].copy()
            for name in ("confidence", "ranked")
        )
        self._prior.add(confidence, ranked, lens[chosen])
        rows = ConfidenceRows(
            source_step_id=batch.step_id,
            slot_id=batch.slot_ids[chosen].astype(np.uint32),
            generation=batch.generations[chosen].astype(np.uint32),
            num_draft_tokens=lens[chosen].astype(np.uint32),
            confidence=confidence,
        )
        return NewDrafts(rows, int(lens.sum()), launched.timeline.draft_ms)
