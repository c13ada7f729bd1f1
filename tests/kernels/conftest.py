"""Where device code runs: on the device for tests marked `gpu`, else in Triton's interpreter.

tests/conftest.py switches the interpreter on.
"""

from __future__ import annotations

import pytest
import torch


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


@pytest.fixture(autouse=True)
def _seeded_torch() -> None:
    """Each test starts from the same random state of torch, whatever ran before it."""
    torch.manual_seed(0)
