"""The one document of learned state."""

from __future__ import annotations

import json

import numpy as np
import pytest
from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.decision.codes import PolicyCode
from specsched_scheduler.decision.draft_length import NUM_QUANTILES, LoadState
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.cost.corrector import CostCorrection
from specsched_scheduler.learning.document import (
    CostPart,
    Entry,
    LearnedState,
    calibration_part,
    read_state,
    write_state,
)
from specsched_scheduler.learning.draft_length_part import DraftLengthPart
from specsched_scheduler.learning.errors import StateError

K = 3
LOAD = ("entries", 0, "draft_length", "loads", 0)
_POSITION = {"gain": 0.0, "extra": 0.0, "evidence": 0, "num_seen": 0}
LOAD_PART = {
    "log2_requests": 0,
    "draft_tokens": K,
    "probe_period": 32,
    "positions": [_POSITION] * K,
}
SURVIVALS = np.linspace(0.1, 0.8, NUM_QUANTILES)[:, None] * [1.0, 0.5, 0.25]


def state() -> LearnedState:
    calibration = Calibration.identity(K).with_class(
        GREEDY, np.array([0.9, 1.1, 1.0]), np.array([-0.2, 0.1, 0.0])
    )
    correction = CostCorrection(
        offset_ms=-1.5,
        scale=2.0,
        ms_per_context_token=3e-5,
        ratios={8: 1.1, 16: 0.9},
        num_samples={8: 40, 16: 3},
        draft_ratios={0: 1.2, 4: 1.3},
    )
    load = LoadState(
        log2_requests=4,
        draft_tokens=2,
        probe_period=64,
        gain=np.array([0.75, 0.5, 0.25]),
        extra=np.array([0.1, 0.2, 0.3]),
        evidence=np.array([2048.0, 2048.0, 64.0]),
        seen=np.array([9000.0, 9000.0, 128.0]),
    )
    entry = Entry(
        model="m",
        drafter="d",
        max_draft_tokens=K,
        cost_fingerprint="f",
        calibration=calibration_part(calibration, (500, 0)),
        cost=CostPart.of(correction),
        draft_length=DraftLengthPart.of(PolicyCode.THROUGHPUT, [load], SURVIVALS),
    )
    return LearnedState(entries=(entry,))


def test_what_is_written_is_read():
    again = read_state(write_state(state()))
    assert again == state()
    entry = again.entry_of("m", "d", K)
    calibration = entry.learned_calibration()
    assert calibration.temperature[GREEDY].tolist() == [0.9, 1.1, 1.0]
    assert (calibration.temperature[SAMPLED] == 1.0).all()
    assert entry.cost.correction().ratios == {8: 1.1, 16: 0.9}
    assert entry.cost.correction().draft_ratios == {0: 1.2, 4: 1.3}
    (load,) = entry.draft_length.states()
    assert load[:3] == (4, 2, 64)
    assert np.stack(load[3:]).tolist() == [
        [0.75, 0.5, 0.25],
        [0.1, 0.2, 0.3],
        [2048.0, 2048.0, 64.0],
        [9000.0, 9000.0, 128.0],
    ]
    assert np.array_equal(entry.draft_length.survivals, SURVIVALS)


def test_a_document_of_version_1_is_read():
    document = json.loads(write_state(state()))
    document["version"] = 1
    del document["entries"][0]["draft_length"]
    again = read_state(json.dumps(document))
    assert again.entries[0].draft_length is None
    assert again.entries[0].cost == state().entries[0].cost
    assert json.loads(write_state(LearnedState().merged(again.entries)))["version"] == 3


def test_a_document_of_version_2_is_read():
    document = json.loads(write_state(state()))
    document["version"] = 2
    del document["entries"][0]["draft_length"]["survivals"]
    again = read_state(json.dumps(document))
    assert again.entries[0].draft_length.loads == state().entries[0].draft_length.loads
    assert again.entries[0].draft_length.survivals == ()


def test_how_drafts_follow_one_another_is_read_past_and_not_written():
    document = json.loads(write_state(state()))
    assert "succession" not in document["entries"][0]
    position = {"variance": 0.1, "covariance": 0.05, "evidence": 2048.0}
    document["entries"][0]["succession"] = {"positions": [position] * K}
    again = read_state(json.dumps(document))
    assert again == state()
    assert write_state(again) == write_state(state())


def test_an_entry_is_for_its_own_kind_of_executor():
    assert state().entry_of("m", "d", K + 1) is None
    assert state().entry_of("other", "d", K) is None


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("format",), "something", "format"),
        (("version",), 4, "version"),
        (("entries", 0, "max_draft_tokens"), 0, "entries.0.max_draft_tokens"),
        (("entries", 0, "max_draft_tokens"), 4, "calibration.greedy.temperature has 3 values"),
        (
            ("entries", 0, "calibration", "greedy", "temperature"),
            [0.1, 1, 1],
            "entries.0.calibration.greedy.temperature.0",
        ),
        (
            ("entries", 0, "calibration", "sampled", "intercept"),
            [0, 0, 9],
            "entries.0.calibration.sampled.intercept.2",
        ),
        (("entries", 0, "cost", "scale"), -1, "entries.0.cost.scale"),
        (("entries", 0, "cost", "ratios", 0, "ratio"), 0, "entries.0.cost.ratios.0.ratio"),
        (("entries", 0, "unknown"), 1, "entries.0.unknown"),
        (("entries", 0, "cost", "scale"), -1.5, "scale = -1.5: Input should be greater than"),
        (("entries", 0, "model"), "m" * 5000, 'entries.0.model = "mmmmm'),
        (("entries", 0, "drafter"), "m" * 5000, "at most 4096 characters"),
        (("entries", 0, "cost_fingerprint"), "m" * 5000, "at most 4096 characters"),
        (
            ("entries", 0, "draft_length", "policy"),
            "fastest",
            'draft_length.policy = "fastest": Value error, accepted: python, throughput, ',
        ),
        ((*LOAD, "draft_tokens"), K + 1, "draft_length.loads.0.draft_tokens is 4"),
        ((*LOAD, "positions"), [], "draft_length.loads.0.positions has 0 values"),
        ((*LOAD, "positions", 1, "gain"), 1.5, "loads.0.positions.1.gain"),
        ((*LOAD, "positions", 1, "evidence"), -1, "loads.0.positions.1.evidence"),
        ((*LOAD, "probe_period"), 0, "loads.0.probe_period"),
        ((*LOAD, "log2_requests"), 60, "loads.0.log2_requests"),
        (
            (*LOAD[:-2], "survivals"),
            [[0.5] * K],
            "draft_length.survivals has 1 drafts, accepted: 8",
        ),
        ((*LOAD[:-2], "survivals"), [[0.5]] * 8, "draft_length.survivals.0 has 1 values"),
        ((*LOAD[:-2], "survivals", 0, 1), 1.5, "draft_length.survivals.0.1"),
        (LOAD[:-1], [LOAD_PART, LOAD_PART], "loads.1.log2_requests is 0 a second time"),
        (LOAD[:-1], [LOAD_PART] * 50, "entries.0.draft_length.loads"),
    ],
)
def test_what_is_wrong_is_named(path, value, words):
    document = json.loads(write_state(state()))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(StateError, match=words.replace(".", r"\.")):
        read_state(json.dumps(document))


def test_what_is_wrong_is_told_briefly():
    document = json.loads(write_state(state()))
    document["entries"] = [{"model": "x" * 10_000}] * 1000
    with pytest.raises(StateError) as refusal:
        read_state(json.dumps(document))
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize("text", ["", "[]", "{", '{"entries": [{}]}', "null"])
def test_no_document_at_all(text):
    with pytest.raises(StateError):
        read_state(text)


def test_no_infinity_gets_in():
    text = write_state(state()).replace('"offset_ms": -1.5', '"offset_ms": 1e999')
    with pytest.raises(StateError, match="offset_ms"):
        read_state(text)
