"""Ranking by calibrated confidences: what comes by message and from beside a checkpoint."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from specsched_executor.calibration import (
    LEARNED_FILE,
    ConfidenceCalibration,
    read_checkpoint_calibration,
)
from specsched_executor.core import DraftOutput
from specsched_executor.engine.drafts import DraftTable
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_scheduler.decision.calibration import GREEDY, SAMPLED, calibrate
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.wire import calibration_to_message

K = 4


def calibration(temperature=1.0, intercept=0.0):
    """Greedy requests as they are, sampled ones changed."""
    return Calibration.identity(K).with_class(
        SAMPLED, np.full(K, temperature), np.full(K, intercept)
    )


def test_it_ranks_by_what_the_scheduler_decides_by():
    learned = calibration(1.7, -0.8)
    ranking = ConfidenceCalibration.from_message(calibration_to_message(learned), K)
    rng = np.random.default_rng(0)
    confidence = rng.random((50, K)).astype(np.float32)
    is_greedy = rng.random(50) < 0.5
    here = ranking.apply(torch.from_numpy(confidence), torch.from_numpy(is_greedy))
    there = calibrate(learned.compile(), np.where(is_greedy, GREEDY, SAMPLED), confidence)
    np.testing.assert_allclose(here.numpy(), there, atol=1e-3)


def test_what_is_no_probability_stays_as_it_is():
    ranking = ConfidenceCalibration.from_message(calibration_to_message(calibration(2.0, 1.0)), K)
    values = torch.tensor([[0.0, 1.0, torch.nan, 1.5]])
    out = ranking.apply(values, torch.tensor([False]))
    assert torch.equal(out, values) or torch.allclose(out, values, equal_nan=True)


def test_nothing_to_change_is_nothing():
    assert ConfidenceCalibration.from_message(pb.Calibration(), K) is None
    assert ConfidenceCalibration.from_message(calibration_to_message(calibration()), K) is None


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (pb.ClassCalibration(temperature=[1.0], intercept=[0.0] * K), "greedy.temperature has 1"),
        (pb.ClassCalibration(temperature=[9.0] * K, intercept=[0.0] * K), "temperature is 9"),
        (pb.ClassCalibration(temperature=[1.0] * K, intercept=[float("nan")] * K), "intercept is"),
    ],
)
def test_what_is_wrong_is_named(part, words):
    with pytest.raises(ValueError, match=words):
        ConfidenceCalibration.from_message(pb.Calibration(greedy=part), K)


def test_drafts_are_ranked_calibrated_and_told_raw():
    table = DraftTable(2, K)
    slots, generations = torch.tensor([0, 1]), torch.tensor([1, 1])
    output = DraftOutput(
        token_ids=torch.zeros(2, K, dtype=torch.int64),
        num_draft_tokens=torch.full((2,), K),
        confidence=torch.full((2, K), 0.9),
    )
    ranking = ConfidenceCalibration.from_message(calibration_to_message(calibration(1.0, -3.0)), K)
    table.store(slots, generations, output, torch.tensor([True, False]), ranking)
    greedy, sampled = table.confidence(slots, generations)
    assert greedy.tolist() == pytest.approx([0.9] * K)
    assert sampled.tolist() == pytest.approx([0.3095] * K, abs=1e-3)
    assert torch.equal(table.raw_confidence(slots, generations), output.confidence)


def entry(num_positions, temperature):
    part = {"temperature": [temperature] * num_positions, "intercept": [0.5] * num_positions}
    return {"entries": [{"calibration": {"greedy": part, "sampled": part}}]}


@pytest.mark.parametrize(("known", "expected"), [(6, [2.0] * K), (2, [2.0, 2.0, 1.0, 1.0])])
def test_a_file_beside_the_checkpoint_is_the_start(tmp_path, known, expected):
    assert read_checkpoint_calibration(tmp_path, K) == pb.Calibration()
    (tmp_path / LEARNED_FILE).write_text(json.dumps(entry(known, 2.0)))
    assert list(read_checkpoint_calibration(tmp_path, K).sampled.temperature) == expected


@pytest.mark.parametrize("content", ["nothing", json.dumps(entry(K, 40.0))])
def test_a_broken_file_is_named(tmp_path, content):
    (tmp_path / LEARNED_FILE).write_text(content)
    with pytest.raises(ValueError, match=LEARNED_FILE):
        read_checkpoint_calibration(tmp_path, K)
