"""Every metric of the scheduler process: its decisions, and what it learned.

What steps really did is the executor's to tell. Labels: `scheduler` on each of them, `slot` where
one attached executor is meant; slots are numbered from 0 and reused, so there are at most
--max-attachments of them. `specsched_attachment_info` says who is in a slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from specsched_protocol.metrics import Metric

__all__ = [
    "CATALOGUE",
    "COMMON_LABELS",
    "LATENCY_BOUNDS_S",
    "RATIO_BOUNDS",
    "ROLES",
]

COMMON_LABELS: Final = ("scheduler",)
LATENCY_BOUNDS_S: Final = (
    *(10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6),
    *(1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1.0),
)
RATIO_BOUNDS: Final = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)
ROLES: Final = ("active", "shadow", "draining", "suspended")

_SLOT: Mapping[str, str] = {"slot": "0 to max_attachments - 1"}
_POSITION: Mapping[str, str] = {"position": "draft position, 0 to k - 1"}
_CATALOGUE: list[Metric] = []


def _metric(
    name: str, kind: Literal["counter", "gauge", "histogram"], text: str, **labels: str
) -> Metric:
    metric = Metric(name, kind, text, dict(labels))
    _CATALOGUE.append(metric)
    return metric


# ===================== The process =====================

INFO = _metric(
    "specsched_scheduler_info",
    "gauge",
    "1; version and policy of this scheduler.",
    version="of the package",
    policy="as in options; one at a time",
)
ATTACHMENTS = _metric("specsched_attachments", "gauge", "Executors attached now.")
ATTACHMENTS_TOTAL = _metric("specsched_attachments_total", "counter", "Executors that attached.")
LEARNING_FROZEN = _metric(
    "specsched_learning_frozen", "gauge", "1 where what was learned is kept as it is."
)

# ===================== An attachment =====================

ATTACHMENT_INFO = _metric(
    "specsched_attachment_info",
    "gauge",
    "1; who is attached in a slot.",
    **_SLOT,
    executor="its name",
    model="its model",
    drafter="its drafter",
    transport="shared_memory or inline",
)
ROLE = _metric(
    "specsched_attachment_role",
    "gauge",
    "1 for the role that the executor gives this scheduler, 0 for the others.",
    **_SLOT,
    role=", ".join(ROLES),
)

# ===================== Decisions =====================

DECISIONS = _metric("specsched_decisions_total", "counter", "Plan requests answered.", **_SLOT)
UNANSWERED = _metric(
    "specsched_unanswered_requests_total",
    "counter",
    "Plan requests without a decision.",
    **_SLOT,
    reason="missed: overtaken by a newer one; invalid: impossible values; policy_error: it raised",
)
TORN = _metric(
    "specsched_torn_reads_total", "counter", "Reads of shared memory that were repeated.", **_SLOT
)
PLAN_LATENCY = _metric(
    "specsched_plan_latency_seconds",
    "histogram",
    "Time from seeing a plan request to its decision.",
    **_SLOT,
)
DECIDED_REQUESTS = _metric(
    "specsched_decided_requests_total", "counter", "Requests of the steps decided.", **_SLOT
)
DECIDED_DRAFTS = _metric(
    "specsched_decided_draft_tokens_total",
    "counter",
    "Drafts that the steps decided were expected to have.",
    **_SLOT,
)
DECIDED_BUDGET = _metric(
    "specsched_decided_budget_tokens_total",
    "counter",
    "Budgets decided; over specsched_decided_draft_tokens_total: their share of the drafts.",
    **_SLOT,
)
NEXT_DRAFT_TOKENS = _metric(
    "specsched_next_draft_tokens", "gauge", "Length of drafts that is asked for.", **_SLOT
)

# ===================== Confidences =====================

REPAIRED = _metric(
    "specsched_repaired_confidences_total",
    "counter",
    "Confidences that were no probability, replaced by the mean of their position.",
    **_SLOT,
)
MISSING = _metric(
    "specsched_missing_confidences_total",
    "counter",
    "Steps decided without any confidence, from the means of the positions.",
    **_SLOT,
)
FROZEN_STEPS = _metric(
    "specsched_confidence_frozen_steps",
    "gauge",
    "Steps in a row in which each request's confidences were bit for bit those of its last step."
    " Absent with the drafter ngram, whose confidences are a table.",
    **_SLOT,
)
EXPECTED_ACCEPTED = _metric(
    "specsched_expected_accepted_tokens_total",
    "counter",
    "Verified drafts, each counted by its calibrated survival: those expected to be accepted.",
    **_SLOT,
)
ACTUAL_ACCEPTED = _metric(
    "specsched_judged_accepted_tokens_total",
    "counter",
    "Those of the same drafts that were accepted.",
    **_SLOT,
)
JUDGED_DRAFTS = _metric(
    "specsched_judged_draft_tokens_total",
    "counter",
    "Verified drafts whose confidence was known.",
    **_SLOT,
)
SURVIVAL_PREDICTED = _metric(
    "specsched_survival_predicted",
    "gauge",
    "Mean calibrated survival of drafts verified up to a position, of late.",
    **_SLOT,
    **_POSITION,
)
SURVIVAL_OBSERVED = _metric(
    "specsched_survival_observed",
    "gauge",
    "Share of them that survived up to it.",
    **_SLOT,
    **_POSITION,
)
CALIBRATION_ERROR = _metric(
    "specsched_calibration_error",
    "gauge",
    "Expected calibration error of the survival up to a position: ten bins, weighted by drafts, of"
    " late. Absent below 1000 drafts.",
    **_SLOT,
    **_POSITION,
)

# ===================== Cost =====================

MODEL_STATE = _metric(
    "specsched_model_state",
    "gauge",
    "1 for the state of the cost model, 0 for the others.",
    **_SLOT,
    state="ok, no_model",
)
MODEL_FLAT = _metric(
    "specsched_model_flat",
    "gauge",
    "1 where the newest decision saw a reachable range that costs the same throughout.",
    **_SLOT,
)
CORRECTION_IN_USE = _metric(
    "specsched_cost_correction_in_use",
    "gauge",
    "1 where steps are priced by the profile as corrected online.",
    **_SLOT,
)
JUDGED_STEPS = _metric(
    "specsched_judged_steps_total",
    "counter",
    "Steps whose prediction could be compared with what they took: this scheduler was followed.",
    **_SLOT,
)
PREDICTED_SECONDS = _metric(
    "specsched_predicted_step_seconds_total", "counter", "Time predicted for them.", **_SLOT
)
MEASURED_SECONDS = _metric(
    "specsched_judged_step_seconds_total", "counter", "Time they took.", **_SLOT
)
PLAIN_SECONDS = _metric(
    "specsched_plain_decoding_seconds_total",
    "counter",
    "Time that the tokens of those steps would have taken without drafts, by the cost model: over"
    " specsched_judged_step_seconds_total, the speed-up.",
    **_SLOT,
)
TIME_RATIO = _metric(
    "specsched_step_time_ratio",
    "histogram",
    "Measured over predicted time of a step.",
    **_SLOT,
)

# ===================== Learning =====================

REPORTS = _metric("specsched_reports_total", "counter", "Reports of steps learned from.", **_SLOT)
LOST_REPORTS = _metric(
    "specsched_lost_reports_total", "counter", "Reports overwritten before they were read.", **_SLOT
)
LOST_CONFIDENCES = _metric(
    "specsched_lost_confidence_steps_total",
    "counter",
    "Steps whose confidences could not be kept for learning.",
    **_SLOT,
)
PUBLICATIONS = _metric(
    "specsched_learning_publications_total",
    "counter",
    "Times that decisions began to go by something newly learned.",
    **_SLOT,
)
PROBES = _metric(
    "specsched_cost_probes_total", "counter", "Steps asked for to see a size's cost again.", **_SLOT
)
LEARNING_FAILURES = _metric(
    "specsched_learning_failures_total",
    "counter",
    "Times that learning failed: from the first one on what was learned is kept as it is, until"
    " learning is resumed.",
    **_SLOT,
)

CATALOGUE: Final = tuple(_CATALOGUE)
