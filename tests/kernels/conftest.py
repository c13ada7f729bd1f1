"""Where device code runs: on the device for tests marked `gpu`, else in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read by Triton on import, before any kernel module is.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="on cuda")),
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
            ],
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> str:
    """Device of the tensors given to Triton code; "cpu" means the interpreter."""
    pytest.importorskip("triton")
    return str(request.param)
