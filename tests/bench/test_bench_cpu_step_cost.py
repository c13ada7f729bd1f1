"""What a verification step costs on a CPU, by rows, with every sample: what learning is tested on.

A machine that does other work beside is no fault here: its noise is what the learner must bear.
"""

from __future__ import annotations

import pytest
import torch
from specsched_executor.model import load_model
from specsched_executor.profiling import ProfileOptions, profile_model

from tests.bench.conftest import RecordBench

SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)
CONTEXT_TOKENS = 256


@pytest.mark.bench
def test_cpu_step_cost(record_bench: RecordBench) -> None:
    torch.set_num_threads(2)
    model = load_model().model
    options = ProfileOptions(
        sizes=SIZES,
        context_tokens=CONTEXT_TOKENS,
        min_rounds=5,
        max_rounds=15,
        max_seconds=60.0,
        max_retake_seconds=0.0,
    )
    profile = profile_model(model, options, fingerprint="")
    results = [
        {
            "rows": rows,
            "context_tokens": profile.verify_context_tokens[rows],
            "samples_ms": [round(ms, 3) for ms in samples],
        }
        for rows, samples in profile.verify.items()
    ]
    slope = profile.context.ms_per_token if profile.context else 0.0
    record_bench(
        "cpu_step_cost", results, model="SmolLM2-135M-Instruct", ms_per_context_token=slope
    )
