"""What was learned as messages, and back."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import numpy as np
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.decision.codes import ModelState
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.cost.corrector import CostCorrector
from specsched_scheduler.learning.errors import StateError
from specsched_scheduler.learning.learner import ExecutorKind, Learner

__all__ = [
    "calibration_from_message",
    "calibration_to_message",
    "class_learning",
    "cost_learning",
    "executor_kind",
]

_NAMES = {GREEDY: "greedy", SAMPLED: "sampled"}


def executor_kind(hello: pb.Hello) -> ExecutorKind:
    """What learned state applies to this executor."""
    model = hello.model
    return ExecutorKind(model.name, model.drafter, model.max_draft_tokens, hello.cost.fingerprint)


# ===================== Calibration =====================


def calibration_from_message(message: pb.Calibration, max_draft_tokens: int) -> Calibration:
    """Raises StateError naming the field that is wrong."""
    calibration = Calibration.identity(max_draft_tokens)
    for of_class, name in _NAMES.items():
        part: pb.ClassCalibration = getattr(message, name)
        if not part.temperature and not part.intercept:
            continue
        for field in ("temperature", "intercept"):
            length = len(getattr(part, field))
            if length != max_draft_tokens:
                raise StateError(
                    f"calibration.{name}.{field} has {length} values, accepted: max_draft_tokens ="
                    f" {max_draft_tokens}"
                )
        calibration = calibration.with_class(
            of_class, np.array(part.temperature), np.array(part.intercept)
        )
    return calibration


def calibration_to_message(calibration: Calibration) -> pb.Calibration:
    """Both classes in full."""
    return pb.Calibration(
        **{
            name: pb.ClassCalibration(
                temperature=calibration.temperature[of_class].tolist(),
                intercept=calibration.intercept[of_class].tolist(),
            )
            for of_class, name in _NAMES.items()
        }
    )


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
