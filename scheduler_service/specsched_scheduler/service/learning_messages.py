"""What was learned as messages, and back."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.decision.codes import ModelState
from specsched_scheduler.learning.cost.corrector import CostCorrector
from specsched_scheduler.learning.learner import ExecutorKind, Learner

__all__ = [
    "class_learning",
    "cost_learning",
    "draft_length_learning",
    "executor_kind",
]


def executor_kind(hello: pb.Hello) -> ExecutorKind:
    """What learned state applies to this executor."""
    model = hello.model
    return ExecutorKind(model.name, model.drafter, model.max_draft_tokens, hello.cost.fingerprint)


def class_learning(learner: Learner, of_class: int) -> pb.ClassLearning:
    """What was learned of one sampling class, with how well it fits what is remembered."""
    calibrator = learner.calibrator
    progress, calibration = calibrator.progress[of_class], calibrator.calibration
    shares = calibrator.shares(of_class)
    return pb.ClassLearning(
        num_drafts=progress.num_rows,
        num_refits=progress.num_refits,
        num_changes=progress.num_changes,
        positions=[
            pb.PositionLearning(
                temperature=calibration.temperature[of_class, position],
                intercept=calibration.intercept[of_class, position],
                num_drafts=share.num_drafts,
                accepted_share=share.accepted,
                raw_share=share.raw,
                calibrated_share=share.calibrated,
            )
            for position, share in enumerate(shares)
        ],
    )


# ===================== Draft length =====================


def draft_length_learning(learner: Learner) -> pb.DraftLengthLearning:
    """How long drafts are to be, and what that follows from."""
    draft_length = learner.draft_length
    return pb.DraftLengthLearning(
        draft_tokens=draft_length.plan.draft_tokens,
        probe_period=draft_length.plan.probe_period,
        loads=[
            pb.LoadLearning(
                num_requests=1 << load.log2_requests,
                draft_tokens=load.draft_tokens,
                positions=[
                    pb.DraftPositionLearning(gain=gain, extra=extra, num_seen=seen)
                    for gain, extra, seen in zip(load.gain, load.extra, load.seen, strict=True)
                ],
            )
            for load in draft_length.loads()
        ],
    )


# ===================== Cost =====================


def cost_learning(learner: Learner) -> pb.CostLearning:
    """What was learned of the cost of steps."""
    corrector = learner.corrector
    correction, profile = corrector.correction(), corrector.profile
    state = ModelState.OK if profile.has_model else ModelState.NO_MODEL
    return pb.CostLearning(
        model_state=plan_pb2.ModelState.ValueType(state),
        in_use=corrector.has_learned and corrector.is_worth_it,
        fingerprint=learner.kind.cost_fingerprint,
        offset_ms=correction.offset_ms,
        scale=correction.scale,
        ms_per_context_token=correction.ms_per_context_token,
        profiled_ms_per_context_token=profile.context.ms_per_token,
        num_samples=corrector.num_steps,
        num_changes=corrector.num_changes,
        sizes=_sizes(corrector),
        drafts=[
            pb.DraftCostLearning(draft_tokens=length or None, ratio=ratio)
            for length, ratio in sorted(correction.draft_ratios.items())
        ],
    )


def _sizes(corrector: CostCorrector) -> Iterable[pb.SizeLearning]:
    correction, corrected = corrector.correction(), corrector.model()
    for size, samples in sorted(corrector.profile.verify.items()):
        yield pb.SizeLearning(
            tokens=size,
            profiled_ms=statistics.median(samples),
            corrected_ms=statistics.median(corrected.verify[size]),
            ratio=correction.ratios.get(size),
            num_samples=correction.num_samples[size],
        )
