"""Drafts made on a device are ranked by calibrated confidences; schedulers are told raw ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from specsched_executor.calibration import ConfidenceCalibration
from specsched_executor.device import GraphSizes

from tests.executor.device.tiny import GRAPHS, DeviceDriver, DeviceTableDrafter, PaddedTarget
from tests.executor.engine.test_lossless import VOCAB
from tests.executor.engine.tiny import ScriptedTransport, config, random_table

K = 3
RAW = 0.5
TEMPERATURE = torch.tensor([[2.0] * K, [1.0] * K])
INTERCEPT = torch.tensor([[-2.0] * K, [0.0, 1.0, 2.0]])


class Confidences:
    """Budgets for one request's drafts, and every confidence that came with a plan request."""

    def __init__(self) -> None:
        self.seen: set[float] = set()

    def __call__(self, rows, request) -> int:
        if rows is not None:
            self.seen |= set(rows.confidence[~np.isnan(rows.confidence)].tolist())
        return min(K, int(request.num_draft_tokens.sum()))


def run(graphs: GraphSizes, calibrations) -> tuple[DeviceDriver, Confidences, dict[bool, int]]:
    """Two requests at once; how many drafts of the greedy and of the sampled one were verified."""
    sizes, told = config(), Confidences()
    transport = ScriptedTransport(told)
    drafter = DeviceTableDrafter(random_table(VOCAB, 0)[1], sizes.max_num_seqs, K)
    target = PaddedTarget(random_table(VOCAB, 0))
    driver = DeviceDriver(
        target, drafter, transport, sizes, graphs=graphs, calibrations=calibrations
    )
    results = {
        temperature == 0: driver.submit([1, 2], temperature=temperature, seed=1, max_tokens=60)
        for temperature in (0.0, 1.0)
    }
    for _ in range(12):
        driver.loop.step()
    assert not any(result.finish_reason for result in results.values())
    verified = dict.fromkeys(results, 0)
    for report in transport.reports:
        for slot, num in zip(report.slot_id.tolist(), report.num_verified.tolist(), strict=True):
            verified[slot == 0] += num
    return driver, told, verified


@pytest.mark.parametrize("graphs", [GRAPHS, GraphSizes()], ids=["graphs", "eager"])
def test_drafts_are_ranked_by_calibrated_confidences(graphs):
    calibration = ConfidenceCalibration(TEMPERATURE, INTERCEPT)
    _, told, verified = run(graphs, lambda: None)
    assert told.seen == {RAW}
    assert verified[True] > 5
    driver, told, verified = run(graphs, lambda: calibration)
    assert told.seen == {RAW}
    assert verified[False] > 15
    assert verified[True] == 0
    expected = torch.sigmoid(INTERCEPT)
    torch.testing.assert_close(driver.parts.step.tables.confidence[:2], expected)
    # The mean that stands in for confidences that are missing is of the same kind.
    mean = torch.from_numpy(driver.loop._runner._prior.mean)
    assert ((mean - expected.mean(0)).abs() < (mean - RAW).abs()).all()


def test_a_calibration_that_changes_or_goes_is_followed():
    calibration = ConfidenceCalibration(TEMPERATURE, INTERCEPT)
    asked = iter([calibration] * 6 + [None] * 6)
    driver, _, _ = run(GRAPHS, lambda: next(asked))
    assert set(driver.parts.step.tables.confidence[:2].flatten().tolist()) == {RAW}
