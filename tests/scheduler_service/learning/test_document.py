"""The one document of learned state."""

from __future__ import annotations

import json

import numpy as np
import pytest
from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
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
from specsched_scheduler.learning.errors import StateError

K = 3


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
    entry = Entry(
        model="m",
        drafter="d",
        max_draft_tokens=K,
        cost_fingerprint="f",
        calibration=calibration_part(calibration, (500, 0)),
        cost=CostPart.of(correction),
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


def test_an_entry_is_for_its_own_kind_of_executor():
    assert state().entry_of("m", "d", K + 1) is None
    assert state().entry_of("other", "d", K) is None


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("format",), "something", "format"),
        (("version",), 2, "version"),
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


@pytest.mark.parametrize("text", ["", "[]", "{", '{"entries": [{}]}', "null"])
def test_no_document_at_all(text):
    with pytest.raises(StateError):
        read_state(text)


def test_no_infinity_gets_in():
    text = write_state(state()).replace('"offset_ms": -1.5', '"offset_ms": 1e999')
    with pytest.raises(StateError, match="offset_ms"):
        read_state(text)
