"""What GetLearning tells of one attachment."""

from __future__ import annotations

from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.learning.learner import Learner

from .learning_messages import class_learning, cost_learning, draft_length_learning
from .planning import Planning

__all__ = ["attachment_learning"]


def attachment_learning(planning: Planning, hello: pb.Hello) -> pb.AttachmentLearning:
    """Everything in one look at the learner; may wait for a fit."""

    def read(learner: Learner) -> pb.AttachmentLearning:
        return pb.AttachmentLearning(
            counters=_counters(planning, learner),
            greedy=class_learning(learner, GREEDY),
            sampled=class_learning(learner, SAMPLED),
            cost=cost_learning(learner),
            draft_length=draft_length_learning(learner),
        )

    message = planning.learning.look(read)
    message.MergeFrom(
        pb.AttachmentLearning(
            boot_id=hello.boot_id,
            executor_name=hello.executor_name,
            model=hello.model,
        )
    )
    return message


def _counters(planning: Planning, learner: Learner) -> pb.LearningCounters:
    counters, pairing = planning.counters(), learner.pairing
    return pb.LearningCounters(
        num_reports=counters.num_reports,
        num_lost_reports=counters.num_lost_reports,
        num_lost_confidences=planning.num_lost_confidences,
        num_paired_drafts=pairing.num_paired,
        num_unpaired_drafts=pairing.num_unpaired,
        num_altered_drafts=pairing.num_altered,
        num_publications=planning.learning.num_publications,
        num_probes=planning.learning.num_probes,
        num_failures=planning.learning.num_failures,
    )
