"""Where device code runs: on the device for tests marked `gpu`, else in Triton's interpreter.

tests/conftest.py switches the interpreter on.
"""

from __future__ import annotations

import numpy as np
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


@pytest.fixture
def e4m3_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Casts to e4m3 as hardware has them; the interpreter's lose the carry: 127.7 becomes 64."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    from triton.language import float8e4nv, float32

    convert = interpreter._convert_float

    def convert_exactly(values, input_dtype, output_dtype, rounding_mode):
        if (input_dtype, output_dtype) != (float32, float8e4nv):
            return convert(values, input_dtype, output_dtype, rounding_mode)
        floats = torch.from_numpy(np.ascontiguousarray(values).view(np.float32))
        return floats.to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", convert_exactly)
