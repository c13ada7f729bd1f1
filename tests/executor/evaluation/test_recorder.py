from __future__ import annotations

import numpy as np
import torch
from specsched_executor.core import DraftInput
from specsched_executor.drafters.ngram import NgramDrafter
from specsched_executor.evaluation.recorder import RecordingDrafter

K = 3
REPEATS, SPEAKS_ONCE, ENDS = (7, 8, 9, 5, 7, 8), (1, 2, 3), (4, 5, 6, 4, 5)


def ints(*values):
    return torch.tensor(values)


def test_every_step_that_asks_for_a_draft_is_noted_and_those_without_one_say_so():
    recorder = RecordingDrafter(NgramDrafter(K), K)
    histories = tuple(np.array(each, dtype=np.int32) for each in (REPEATS, SPEAKS_ONCE, ENDS))
    slots, generations = ints(0, 1, 2), ints(4, 5, 6)
    recorder.draft(
        DraftInput(
            step_id=1,
            slot_ids=slots,
            generations=generations,
            histories=histories,
            max_draft_tokens=ints(K, K, 0),
            temperatures=torch.zeros(3),
            seeds=ints(10, 11, 12),
        )
    )
    recorder.observe(ints(0), ints(4), ints(K), ints(2))
    outcomes = recorder.outcomes()
    noted = {
        seed: (history, verified, accepted, bool(np.isfinite(confidence).all()))
        for seed, history, verified, accepted, confidence in zip(
            outcomes.seed.tolist(),
            outcomes.history_tokens.tolist(),
            outcomes.num_verified.tolist(),
            outcomes.num_accepted.tolist(),
            outcomes.confidence,
            strict=True,
        )
    }
    assert noted == {10: (len(REPEATS), K, 2, True), 11: (len(SPEAKS_ONCE), 0, 0, False)}
    assert np.isnan(outcomes.confidence[outcomes.seed == 11]).all()
