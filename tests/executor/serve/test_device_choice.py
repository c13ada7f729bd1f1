"""What an executor runs on, and what it says where that is not what was asked for."""

from __future__ import annotations

import pytest
import torch
from specsched_executor.config import ExecutorConfig
from specsched_executor.serve.device_choice import GpuFacts, choose_device, find_gpu
from specsched_protocol.settings import MissingPackageError
from structlog.testing import capture_logs

HOPPER = GpuFacts("NVIDIA H200", (9, 0), has_triton=True)
TURING = GpuFacts("Tesla T4", (7, 5), has_triton=True)
BARE = GpuFacts("NVIDIA H200", (9, 0), has_triton=False)


def choose(gpu: GpuFacts | None, **options):
    with capture_logs() as logs:
        chosen = choose_device(ExecutorConfig(**options), lambda: gpu)
    return chosen, logs


@pytest.mark.parametrize("asked", ["auto", "cuda"])
def test_a_usable_gpu_is_used(asked):
    chosen, logs = choose(HOPPER, device=asked, capture_sizes=[1, 16])
    assert (chosen.device, chosen.capture_sizes, logs) == ("cuda", [1, 16], [])


def test_no_gpu_is_no_matter_unless_one_is_asked_for():
    chosen, logs = choose(None, device="auto", enforce_eager=True)
    assert (chosen.device, chosen.enforce_eager, logs) == ("cpu", False, [])
    with pytest.raises(ValueError, match=r"device = cuda, but torch .* accepted here: auto or cpu"):
        choose(None, device="cuda")


def test_the_cpu_is_used_beside_a_gpu_where_it_is_asked_for():
    assert choose(HOPPER, device="cpu")[0].device == "cpu"


@pytest.mark.parametrize("asked", ["auto", "cuda"])
def test_a_gpu_that_is_too_old_is_left_alone_and_named(asked):
    chosen, logs = choose(TURING, device=asked)
    assert chosen.device == "cpu"
    (log,) = logs
    assert log["log_level"] == "warning"
    assert (log["gpu"], log["compute_capability"], log["accepted"]) == (
        "Tesla T4",
        "7.5",
        "8.0 or newer",
    )


def test_a_missing_triton_is_told_with_the_way_to_install_it():
    chosen, (log,) = choose(BARE, device="auto")
    assert chosen.device == "cpu"
    assert log["remedy"] == "pip install 'specsched[gpu]'"
    with pytest.raises(MissingPackageError, match=r"needs triton.*pip install 'specsched\[gpu\]'"):
        choose(BARE, device="cuda")


def test_what_torch_sees_is_what_is_found():
    assert (find_gpu() is not None) == torch.cuda.is_available()


def test_a_recording_of_outcomes_is_not_left_out_silently(tmp_path):
    trace = tmp_path / "trace.npz"
    trace.touch()
    with pytest.raises(ValueError, match="acceptance_trace needs a GPU"):
        choose(None, device="auto", acceptance_trace=trace)
