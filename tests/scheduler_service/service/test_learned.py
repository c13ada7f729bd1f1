"""How much a scheduler remembers of executors that are not there."""

from __future__ import annotations

import pytest
from specsched_scheduler.learning.calibration.parameters import Calibration
from specsched_scheduler.learning.document import (
    Entry,
    LearnedState,
    calibration_part,
    write_state,
)
from specsched_scheduler.learning.errors import StateError
from specsched_scheduler.service.learned import MAX_ENTRIES, LearnedStates

K = 2
CALIBRATION = calibration_part(Calibration.identity(K), (0, 0))
ENTRY_BYTES = 1000
"""More than one takes."""


def entry(number: int) -> Entry:
    return Entry(model=f"m{number}", drafter="d", max_draft_tokens=K, calibration=CALIBRATION)


def entries(*numbers: int) -> tuple[Entry, ...]:
    return tuple(entry(number) for number in numbers)


def test_an_import_that_makes_too_many_is_refused_and_changes_nothing():
    known = LearnedStates(LearnedState(), is_frozen=False)
    known.adopt(LearnedState(entries=entries(*range(MAX_ENTRIES))))
    known.adopt(LearnedState(entries=entries(0, 1)))  # of kinds that are known
    before = known.document(())
    with pytest.raises(StateError, match=f"make {MAX_ENTRIES + 1} kinds.*accepted: {MAX_ENTRIES}"):
        known.adopt(LearnedState(entries=entries(MAX_ENTRIES)))
    assert known.document(()) == before


def test_an_import_that_no_export_could_hold_is_refused():
    known = LearnedStates(LearnedState(), is_frozen=False, max_bytes=10 * ENTRY_BYTES)
    with pytest.raises(StateError, match=rf"bytes; accepted: {10 * ENTRY_BYTES} "):
        known.adopt(LearnedState(entries=entries(*range(40))))
    assert not known.document(()).entries


def test_what_is_learned_here_displaces_the_oldest():
    known = LearnedStates(LearnedState(), is_frozen=False)
    for number in range(MAX_ENTRIES + 2):
        known.keep(entry(number))
    kept = [each.model for each in known.document(entries(7, -1)).entries]
    assert len(kept) == MAX_ENTRIES
    assert kept[0] == "m3"
    assert kept[-2:] == ["m7", "m-1"]


def test_a_document_always_fits():
    max_bytes = 10 * ENTRY_BYTES
    known = LearnedStates(
        LearnedState(entries=entries(*range(40))), is_frozen=False, max_bytes=max_bytes
    )
    document = known.document(entries(50, 51))
    assert [each.model for each in document.entries][-2:] == ["m50", "m51"]
    assert max_bytes // 2 < len(write_state(document)) <= max_bytes
