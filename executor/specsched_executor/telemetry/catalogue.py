"""Every metric of the executor process: what was carried out, and who is followed.

Names that dashboards of vLLM read are vLLM's, letter by letter, with its labels; what they count is
the same, with drafts taken as the ones that are verified: there, all of them are. Everything else
is `specsched_`. What schedulers decided and learned is theirs to tell.
"""

from __future__ import annotations

from typing import Final, Literal

from specsched_protocol.metrics import Metric

__all__ = ["CATALOGUE", "COMMON_LABELS"]

COMMON_LABELS: Final = ("model_name", "engine")
_CATALOGUE: list[Metric] = []


def _metric(
    name: str, kind: Literal["counter", "gauge", "histogram"], text: str, /, **labels: str
) -> Metric:
    metric = Metric(name, kind, text, dict(labels))
    _CATALOGUE.append(metric)
    return metric


# ===================== As vLLM has them =====================

RUNNING = _metric("vllm:num_requests_running", "gauge", "Requests that hold a slot.")
WAITING = _metric("vllm:num_requests_waiting", "gauge", "Requests that wait for one.")
KV_USAGE = _metric(
    "vllm:kv_cache_usage_perc", "gauge", "Share of the KV blocks in use. 1 means all of them."
)
PREEMPTIONS = _metric(
    "vllm:num_preemptions_total", "counter", "Requests that lost their KV blocks for a while."
)
PROMPT_TOKENS = _metric(
    "vllm:prompt_tokens_total", "counter", "Prompt tokens of requests that came to their output."
)
GENERATION_TOKENS = _metric(
    "vllm:generation_tokens_total", "counter", "Tokens put out, bonus tokens included."
)
REQUEST_SUCCESS = _metric(
    "vllm:request_success_total",
    "counter",
    "Outputs that came to an end.",
    finished_reason="stop, length, abort, error",
)
TIME_TO_FIRST_TOKEN = _metric(
    "vllm:time_to_first_token_seconds",
    "histogram",
    "From taking a request to its first token, as the client's stream gets it.",
)
TIME_PER_TOKEN = _metric(
    "vllm:request_time_per_output_token_seconds",
    "histogram",
    "Mean time between tokens of an output after its first ones.",
)
LATENCY = _metric(
    "vllm:e2e_request_latency_seconds", "histogram", "From taking a request to an output's end."
)
NUM_DRAFTS = _metric(
    "vllm:spec_decode_num_drafts_total",
    "counter",
    "Drafts of which at least one token was verified: one per request and step.",
)
VERIFIED = _metric(
    "vllm:spec_decode_num_draft_tokens_total",
    "counter",
    "Draft tokens verified: run through the target.",
)
ACCEPTED = _metric(
    "vllm:spec_decode_num_accepted_tokens_total", "counter", "Draft tokens accepted."
)
ACCEPTED_PER_POS = _metric(
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "counter",
    "Draft tokens accepted, by position in the draft.",
    position="draft position, 0 to k - 1",
)

# ===================== Steps =====================

MAX_RUNNING = _metric("specsched_max_running_requests", "gauge", "Slots there are.")
STEPS = _metric("specsched_steps_total", "counter", "Steps run.")
STEP_SECONDS = _metric(
    "specsched_step_seconds", "histogram", "Time of a step: verification and drafting."
)
ROWS = _metric(
    "specsched_rows_total", "counter", "Rows of the target: anchors, drafts and prefill."
)
DRAFTED = _metric("specsched_drafted_tokens_total", "counter", "Draft tokens proposed.")
SCHEDULED = _metric(
    "specsched_scheduled_tokens_total",
    "counter",
    "Draft tokens that budgets allowed, of those present.",
)
PLANNED_STEPS = _metric(
    "specsched_planned_steps_total", "counter", "Steps with drafts whose plan was there in time."
)
FALLBACK_STEPS = _metric(
    "specsched_fallback_steps_total",
    "counter",
    "Steps with drafts that had no plan.",
    reason="no_scheduler, late, torn, stale_source, wrong_epoch, impossible",
)
FAILED_STEPS = _metric("specsched_failed_steps_total", "counter", "Steps that raised.")
FAILED_REQUESTS = _metric(
    "specsched_failed_requests_total", "counter", "Outputs that the engine gave up."
)
FAILED_SINKS = _metric("specsched_failed_sinks_total", "counter", "Outputs whose receiver raised.")

# ===================== Schedulers =====================

LOOKS_FOR_SCHEDULERS = _metric(
    "specsched_looks_for_schedulers",
    "gauge",
    "1 where schedulers are wanted (--scheduler auto), else 0.",
)
LANES = _metric("specsched_lanes", "gauge", "Schedulers attached and ready.")
FOLLOWED = _metric("specsched_scheduler_followed", "gauge", "1 where one of them is followed.")
LANE_INFO = _metric(
    "specsched_lane_info",
    "gauge",
    "1; which scheduler is in a lane.",
    lane="0 to 3",
    scheduler="its name: one at a time in each lane",
    version="of its package",
    transport="shared_memory, inline",
    role="active, shadow, draining, suspended",
)
LANE_REGRET = _metric(
    "specsched_lane_regret_tokens",
    "gauge",
    "Mean tokens per step lost against the best budget in hindsight, by this lane's decisions.",
    lane="0 to 3",
)
LANE_STEPS = _metric(
    "specsched_lane_compared_steps_total",
    "counter",
    "Steps in which the decisions of lanes were compared.",
    lane="0 to 3",
)
LANE_FAULTS = _metric(
    "specsched_lane_faults_total",
    "counter",
    "Steps for which a lane had no decision that may be followed.",
    lane="0 to 3",
    reason="late, torn, stale_source, wrong_epoch, impossible",
)
ATTACHES = _metric("specsched_attaches_total", "counter", "Schedulers that attached.")
DETACHES = _metric(
    "specsched_detaches_total",
    "counter",
    "Schedulers that left.",
    how="ended: in good order; crashed: killed, cut off, or broke the protocol",
)
ATTACH_FAULTS = _metric(
    "specsched_attach_faults_total",
    "counter",
    "Faults of the executor itself at looking for schedulers, being attached and watching them.",
)
SWITCHES = _metric(
    "specsched_switches_total",
    "counter",
    "Changes of the scheduler that is followed.",
    reason="first, stand_in, returned, promoted, drained, lost, unresponsive, livelocked, garbage",
)

CATALOGUE: Final = tuple(_CATALOGUE)
