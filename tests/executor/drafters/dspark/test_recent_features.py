from __future__ import annotations

import numpy as np
import torch
from specsched_executor.drafters.dspark.recent_features import RecentFeatures

LAYERS = (4, 1)


def rows_of(recent, values):
    """One row for each value, told apart by layer."""
    rows = torch.tensor(values, dtype=torch.float32)[:, None].expand(-1, 2)
    return recent.side_by_side({1: rows + 0.5, 4: rows, 7: rows * torch.nan})


def test_a_slot_has_its_last_tokens_by_position():
    recent = RecentFeatures(3, 4, LAYERS, 2, torch.float32)
    first, others = np.arange(4), np.full(4, 2)
    recent.put(np.zeros(4, dtype=np.int64), first, rows_of(recent, [0, 1, 2, 3]))
    recent.put(others, first, rows_of(recent, [20, 21, 22, 23]))
    recent.put(np.array([0, 0]), np.array([4, 5]), rows_of(recent, [4, 5]))
    found = recent.take(np.array([0, 0, 0, 0, 2]), np.array([5, 2, 3, 4, 1]))
    assert found[:, 0].tolist() == [5, 2, 3, 4, 21]
    assert found[0].tolist() == [5, 5, 5.5, 5.5]


def test_rows_are_kept_as_the_product_takes_them():
    recent = RecentFeatures(1, 8, LAYERS, 2, torch.bfloat16)
    slot, position = np.zeros(1, dtype=np.int64), np.array([11])
    recent.put(slot, position, rows_of(recent, [1.001]))
    found = recent.take(slot, position)
    assert found.dtype == torch.bfloat16
    assert found[0, 0] == torch.tensor(1.001).bfloat16()
