"""Synthetic acceptance: the recorded outcome for what was verified, whatever the target says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from specsched_executor.device.recorded import RecordedDrafter
from specsched_executor.drafters.acceptance_trace import read_acceptance_trace

from tests.executor.device.tiny import DeviceDriver, DeviceTableDrafter, PaddedTarget
from tests.executor.engine.test_lossless import SCHEDULES, VOCAB
from tests.executor.engine.tiny import SilentTransport, config, random_table

NUM_DRAFTS = 3
MAX_TOKENS = 40


def drafter_of(tmp_path, accepted: list[int]) -> RecordedDrafter:
    """One recorded request whose steps had these outcomes, and confidences that tell them."""
    outcomes = np.array(accepted, dtype=np.int8)
    path = tmp_path / "trace.npz"
    np.savez(
        path,
        conf_logit=np.where(np.arange(NUM_DRAFTS) < outcomes[:, None], 2.0, -2.0),
        accepted=outcomes,
        request=np.zeros(len(outcomes), dtype=np.int64),
    )
    table = random_table(VOCAB, 0)[1]
    inner = DeviceTableDrafter(table, config().max_num_seqs, NUM_DRAFTS)
    return RecordedDrafter(inner, read_acceptance_trace(path, NUM_DRAFTS), torch.device("cpu"))


def run(drafter: RecordedDrafter, schedule: str, temperature: float):
    target = PaddedTarget(random_table(VOCAB, 0))
    driver = DeviceDriver(target, drafter, SCHEDULES[schedule](), config())
    results = [
        driver.submit([1, 2], temperature=temperature, seed=seed, max_tokens=MAX_TOKENS)
        for seed in range(6)
    ]
    driver.run()
    assert {len(result.token_ids) for result in results} == {MAX_TOKENS}
    return driver.loop.stats()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("accepted", [0, 2, 3])
def test_as_many_drafts_are_accepted_as_were_recorded(tmp_path, accepted, temperature):
    stats = run(drafter_of(tmp_path, [accepted] * 4), "verify all", temperature)
    verified_whole = stats.num_verified_tokens / NUM_DRAFTS
    assert verified_whole > 20
    # Near the end of an answer drafts are shorter than recorded.
    assert abs(stats.num_accepted_tokens - accepted * verified_whole) < 12


def test_only_what_was_verified_is_accepted(tmp_path):
    stats = run(drafter_of(tmp_path, [3, 3]), "any budget", 1.0)
    assert 0 < stats.num_accepted_tokens == stats.num_verified_tokens


def test_a_seed_chooses_the_recorded_request_and_changes_nothing_else(tmp_path):
    drafter = drafter_of(tmp_path, [3] * 4)
    sizes = replace(config(), has_recorded_outcomes=True)
    driver = DeviceDriver(PaddedTarget(random_table(VOCAB, 0)), drafter, SilentTransport(), sizes)
    driver.submit([1, 2], temperature=1.0, seed=5, max_tokens=8)
    driver.run()
    columns = driver.loop._columns
    assert not columns.keeps_own_sample.any()
    assert not columns.is_told_apart.any()
    assert columns.draft_temperature[columns.seed == 5] == 1.0


def test_confidences_are_the_recorded_ones(tmp_path):
    drafter = drafter_of(tmp_path, [2])
    run(drafter, "verify all", 1.0)
    confidence = torch.unique(drafter._confidence).tolist()
    assert confidence == pytest.approx([1 / (1 + np.e**2), 1 / (1 + np.e**-2)])
    assert drafter.name == "stochastic, synthetic acceptance"
