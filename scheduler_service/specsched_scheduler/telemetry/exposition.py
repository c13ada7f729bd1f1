"""A snapshot as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric as Family
from specsched_protocol.histogram import Histogram
from specsched_protocol.metrics import Exposition

from . import catalogue as m
from .snapshot import ExecutorSnapshot, HistogramSnapshot, Snapshot

__all__ = ["write_families"]

_STATES = ("ok", "no_model")


def write_families(snapshot: Snapshot) -> Iterable[Family]:
    """Every metric of the catalogue, with what the snapshot has of it."""
    out = Exposition(m.CATALOGUE, {"scheduler": snapshot.name})
    out.add(m.INFO, 1, snapshot.version, snapshot.policy)
    out.add(m.ATTACHMENTS, len(snapshot.executors))
    out.add(m.ATTACHMENTS_TOTAL, snapshot.num_attached)
    out.add(m.LEARNING_FROZEN, snapshot.is_learning_frozen)
    for executor in snapshot.executors:
        _identity(out, executor)
        _decisions(out, executor)
        _confidences(out, executor)
        _cost(out, executor)
        _learning(out, executor)
    return out.families()


def _identity(out: Exposition, it: ExecutorSnapshot) -> None:
    out.add(m.ATTACHMENT_INFO, 1, it.slot, it.name, it.model, it.drafter, it.transport)
    for role in m.ROLES:
        out.add(m.ROLE, role == it.role, it.slot, role)


def _decisions(out: Exposition, it: ExecutorSnapshot) -> None:
    decisions, slot = it.decisions, it.slot
    out.add(m.DECISIONS, decisions.num_decisions, slot)
    out.add(m.UNANSWERED, decisions.num_missed, slot, "missed")
    out.add(m.UNANSWERED, decisions.num_invalid, slot, "invalid")
    out.add(m.UNANSWERED, decisions.num_policy_errors, slot, "policy_error")
    out.add(m.TORN, decisions.num_torn_reads, slot)
    out.add_histogram(m.PLAN_LATENCY, _histogram(decisions.latency_s), slot)
    out.add(m.DECIDED_REQUESTS, decisions.num_requests, slot)
    out.add(m.DECIDED_DRAFTS, decisions.num_draft_tokens, slot)
    out.add(m.DECIDED_BUDGET, decisions.budget, slot)
    if decisions.newest is not None:
        out.add(m.NEXT_DRAFT_TOKENS, decisions.newest.next_draft_tokens, slot)
        out.add(m.MODEL_FLAT, decisions.newest.is_flat, slot)


def _confidences(out: Exposition, it: ExecutorSnapshot) -> None:
    confidences, slot = it.confidences, it.slot
    out.add(m.REPAIRED, confidences.num_repaired, slot)
    out.add(m.MISSING, confidences.num_missing_steps, slot)
    if confidences.num_frozen_steps is not None:
        out.add(m.FROZEN_STEPS, confidences.num_frozen_steps, slot)
    out.add(m.JUDGED_DRAFTS, confidences.num_judged, slot)
    out.add(m.EXPECTED_ACCEPTED, confidences.num_expected, slot)
    out.add(m.ACTUAL_ACCEPTED, confidences.num_accepted, slot)
    for each in confidences.positions:
        if each.num_drafts > 0:
            out.add(m.SURVIVAL_PREDICTED, each.predicted, slot, each.position)
            out.add(m.SURVIVAL_OBSERVED, each.observed, slot, each.position)
        if each.error is not None:
            out.add(m.CALIBRATION_ERROR, each.error, slot, each.position)


def _cost(out: Exposition, it: ExecutorSnapshot) -> None:
    times, slot = it.step_times, it.slot
    for state in _STATES:
        out.add(m.MODEL_STATE, state == it.cost.model_state, slot, state)
    out.add(m.CORRECTION_IN_USE, it.cost.is_corrected, slot)
    out.add(m.JUDGED_STEPS, times.num_steps, slot)
    out.add(m.PREDICTED_SECONDS, times.predicted_s, slot)
    out.add(m.MEASURED_SECONDS, times.measured_s, slot)
    out.add(m.PLAIN_SECONDS, times.plain_s, slot)
    out.add_histogram(m.TIME_RATIO, _histogram(times.ratios), slot)


def _learning(out: Exposition, it: ExecutorSnapshot) -> None:
    learning, slot = it.learning, it.slot
    out.add(m.REPORTS, learning.num_reports, slot)
    out.add(m.LOST_REPORTS, learning.num_lost_reports, slot)
    out.add(m.LOST_CONFIDENCES, learning.num_lost_confidences, slot)
    out.add(m.PUBLICATIONS, learning.num_publications, slot)
    out.add(m.PROBES, learning.num_probes, slot)
    out.add(m.LEARNING_FAILURES, learning.num_failures, slot)


def _histogram(snapshot: HistogramSnapshot) -> Histogram:
    histogram = Histogram(snapshot.bounds)
    histogram.counts, histogram.sum = list(snapshot.counts), snapshot.sum
    return histogram
