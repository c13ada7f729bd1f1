"""The columns of a trace: one row per step, per-request values as lists of one length."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["METADATA_PREFIX", "SCHEMA"]

METADATA_PREFIX = "specsched."
"""Keys of a file's metadata: format_version, executor, boot_id, model, max_draft_tokens, policy and
cost, the profile as JSON of specsched.v1.CostModel."""

_REQUEST = [
    ("slot_id", pa.list_(pa.uint32())),
    ("generation", pa.list_(pa.uint32())),
    ("num_draft_tokens", pa.list_(pa.uint32())),
    ("samples", pa.list_(pa.bool_())),
    ("is_greedy", pa.list_(pa.bool_())),
    ("weight", pa.list_(pa.float32())),
    ("context_tokens", pa.list_(pa.uint32())),
    # Values that count in a row of `confidence`; the rest of the row is null.
    ("num_confidences", pa.list_(pa.uint32())),
    ("confidence", pa.list_(pa.list_(pa.float32()))),
]
_DECISION = [
    ("budget", pa.uint32()),
    ("max_verify_len", pa.uint32()),  # null: no cap
    ("next_draft_tokens", pa.uint32()),
    ("expected_tokens", pa.float64()),
    ("expected_ms", pa.float64()),
    ("policy_id", pa.uint64()),
    ("model_state", pa.uint32()),
    ("flags", pa.uint32()),
    ("plan_us", pa.float64()),
]
# Null where the executor did not report the step, or its report was lost.
_OUTCOME = [
    ("num_tokens", pa.uint32()),
    ("padded_num_tokens", pa.uint32()),
    ("asked_draft_tokens", pa.uint32()),
    ("draft_ms", pa.float64()),
    ("verify_ms", pa.float64()),
    ("outcome_slot_id", pa.list_(pa.uint32())),
    ("outcome_generation", pa.list_(pa.uint32())),
    ("num_verified", pa.list_(pa.uint32())),
    ("num_accepted", pa.list_(pa.uint32())),
    ("teaches", pa.list_(pa.bool_())),
]
SCHEMA = pa.schema(
    [
        ("step_id", pa.int64()),
        ("source_step_id", pa.int64()),
        ("decided_ns", pa.int64()),
        ("num_other_tokens", pa.uint32()),
        ("num_prefill_tokens", pa.uint32()),
        ("max_budget", pa.uint32()),  # null: no cap
        *_REQUEST,
        *_DECISION,
        *_OUTCOME,
    ]
)
