from __future__ import annotations

import numpy as np
import torch
from specsched_executor.core import PAD_SLOT
from specsched_executor.drafters.dspark.pending import PendingRows


def add(pending, owner, positions, slots):
    rows = torch.tensor(positions, dtype=torch.float32)[:, None]
    features = {1: rows, 4: rows + 0.5}
    owners = np.full(len(positions), owner)
    pending.add(owners, np.array(positions), np.array(slots), features)


def test_rows_that_others_overwrite_are_not_written():
    pending = PendingRows(8)
    add(pending, 0, [0, 1, 2], [10, 11, 12])
    add(pending, 0, [3, 4], [10, 11])
    add(pending, 0, [5], [PAD_SLOT])
    features, rows = pending.take([1, 4])
    assert rows.positions.tolist() == [2, 3, 4]
    assert rows.slots.tolist() == [12, 10, 11]
    assert features.tolist() == [[2.0, 2.5], [3.0, 3.5], [4.0, 4.5]]
    assert len(pending) == 0


def test_rows_of_requests_that_ended_are_not_written():
    pending = PendingRows(8)
    add(pending, 0, [0, 1], [10, 11])
    add(pending, 1, [0, 1], [20, 21])
    pending.drop(0)
    _, rows = pending.take([1])
    assert rows.slots.tolist() == [20, 21]
    add(pending, 1, [2], [22])
    pending.drop(1)
    features, rows = pending.take([1, 4])
    assert features.shape == (0, 2)
    assert len(rows.slots) == 0
