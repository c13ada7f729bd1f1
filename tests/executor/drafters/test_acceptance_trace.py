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


def test_a_position_has_a_step_of_its_request(tmp_path):
    trace = read_acceptance_trace(write(tmp_path / "trace.npz"), 3)
    assert set(trace.greedy.row_at.ravel()) == {0, 1, 2}
    assert set(trace.sampled.row_at.ravel()) == {3, 4}
    assert trace.num_accepted.tolist() == [2, 0, 1, 3, 0]
    assert trace.confidence.dtype == np.float32
    assert trace.confidence.tolist() == [[0.5] * 3] * 5


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
@pytest.mark.parametrize("num_verified", [1, 3, 7])
def test_drafts_are_accepted_as_often_as_recorded_however_many_are_verified(kind, num_verified):
    trace = read_acceptance_trace(FIXTURE, 7)
    row_at = getattr(trace, kind).row_at
    position, requests = np.zeros(len(row_at), dtype=np.int64), np.arange(len(row_at))
    num_accepted = []
    for _ in range(300):
        accepted = trace.num_accepted[row_at[requests, position % row_at.shape[1]]]
        num_accepted.append(np.minimum(accepted, num_verified))
        position += num_accepted[-1] + 1
    recorded = [trace.num_accepted[np.unique(rows)] for rows in row_at]
    expected = np.mean([np.minimum(each, num_verified).mean() for each in recorded])
    assert np.mean(num_accepted) == pytest.approx(expected, rel=0.03)


def test_easy_and_hard_places_stay_where_they_were(tmp_path):
    """Of 400 steps the first half is accepted whole, 800 tokens, and the second not at all."""
    accepted = np.repeat(np.array([3, 0], dtype=np.int8), 200)
    one = {"request": np.zeros(400, dtype=np.int64), "temperature": np.zeros(400)}
    logit = np.zeros((400, 3), dtype=np.float16)
    path = write(tmp_path / "trace.npz", conf_logit=logit, accepted=accepted, **one)
    trace = read_acceptance_trace(path, 3)
    by_position = trace.num_accepted[trace.greedy.row_at[0, :1000]]
    assert (by_position[50:750] == 3).all()
    assert (by_position[820:980] == 0).all()


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
    with pytest.raises(ValueError, match=r"text\.npz is no \.npz") as refused:
        read_acceptance_trace(path, 3)
    assert "pickle" not in str(refused.value)
