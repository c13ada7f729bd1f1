"""Recorded drafts as the executor reads them."""

from __future__ import annotations

import numpy as np
import pytest
from specsched_executor.drafters.acceptance_trace import read_acceptance_trace

from tests.repository import ROOT

FIXTURE = ROOT / "tests" / "fixtures" / "drafts.npz"


def write(path, **changes):
    arrays = {
        "conf_logit": np.zeros((5, 3), dtype=np.float16),
        "accepted": np.array([2, 0, 1, 3, 0], dtype=np.int8),
        "request": np.array([4, 4, 4, 9, 9]),
        "temperature": np.array([0, 0, 0, 1, 1]),
    } | changes
    np.savez(path, **{name: each for name, each in arrays.items() if each is not None})
    return path


def test_a_position_has_the_step_that_drafted_there_or_the_next_one(tmp_path):
    trace = read_acceptance_trace(write(tmp_path / "trace.npz"), 3)
    # Steps begin at the positions 0, 3 and 4 of six; then the answer begins again.
    assert trace.greedy.row_at[0, :8].tolist() == [0, 1, 1, 1, 2, 0, 0, 1]
    assert trace.sampled.row_at[0, :6].tolist() == [3, 4, 4, 4, 4, 3]
    assert trace.num_accepted.tolist() == [2, 0, 1, 3, 0]
    assert trace.confidence.dtype == np.float32
    assert trace.confidence.tolist() == [[0.5] * 3] * 5


def test_a_recording_without_temperatures_serves_both_kinds(tmp_path):
    trace = read_acceptance_trace(write(tmp_path / "trace.npz", temperature=None), 2)
    assert trace.greedy.row_at.tolist() == trace.sampled.row_at.tolist()
    assert len(trace.greedy.row_at) == 2


def test_the_fixture_is_one():
    trace = read_acceptance_trace(FIXTURE, 7)
    assert (len(trace.greedy.row_at), len(trace.sampled.row_at)) == (201, 90)
    assert 0 < trace.confidence.min() < trace.confidence.max() < 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accepted": None}, "accepted is missing"),
        ({"accepted": np.array([2, 0, 1, 4, 0])}, "not within 0 to 3"),
        ({"accepted": np.array([2, 0, 1])}, "shapes"),
        ({"conf_logit": np.full((5, 3), np.nan)}, "not finite"),
        ({"conf_logit": np.zeros((5, 2))}, "drafts of 2; accepted: 3"),
    ],
)
def test_another_file_is_refused_by_name(tmp_path, changes, said):
    path = write(tmp_path / "wrong.npz", **changes)
    with pytest.raises(ValueError, match=said) as caught:
        read_acceptance_trace(path, 3)
    assert str(path) in str(caught.value)


def test_no_archive_is_refused(tmp_path):
    path = tmp_path / "text.npz"
    path.write_text("no archive")
    with pytest.raises(ValueError, match=r"text\.npz is no \.npz"):
        read_acceptance_trace(path, 3)
