"""Every policy, decided in this process, over the tiny target."""

import numpy as np
import pytest
from specsched_executor.drafters import NgramDrafter, NoDrafter
from specsched_executor.transport.in_process import InProcessTransport
from specsched_protocol.plan import ConfidenceRows, FallbackReason, PlanRequest
from specsched_protocol.v1 import plan_pb2
from specsched_scheduler.policies import PolicyError

from tests.executor.engine.tiny import Driver, SilentTransport, TableTarget, config, random_table

VOCAB = 6
STAIRS = {1: 1.0, 2: 1.9, 4: 2.6, 8: 3.4, 16: 4.2, 32: 7.0}
POLICIES = [
    "throughput",
    "ratio",
    "greedy-causal",
    "fixed(1)",
    "fixed(3)",
    "threshold(0.4)",
    "off",
]


def cost() -> plan_pb2.CostModel:
    verify = [plan_pb2.VerifyCost(tokens=tokens, ms=[ms]) for tokens, ms in STAIRS.items()]
    return plan_pb2.CostModel(verify=verify, capture_limit=32)


def transport(policy: str, max_requests: int = 4) -> InProcessTransport:
    return InProcessTransport(policy, cost(), max_requests=max_requests, max_draft_tokens=3)


def run(carrier, drafter, temperature: float):
    driver = Driver(TableTarget(random_table(VOCAB, 0)), drafter, carrier, config())
    results = [
        driver.submit([seed % VOCAB, 1, 2], temperature=temperature, seed=seed, max_tokens=40)
        for seed in range(10)
    ]
    driver.run()
    return [result.token_ids for result in results], driver.loop.stats()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("policy", POLICIES)
def test_output_is_the_same_under_every_policy(policy, temperature):
    expected, _ = run(SilentTransport(), NoDrafter(), temperature)
    actual, stats = run(transport(policy), NgramDrafter(3), temperature)
    assert actual == expected
    # `off` has nothing drafted, and a step without drafts needs no plan.
    assert (stats.num_planned_steps > 0) == (policy != "off")
    assert sum(stats.num_fallback_steps.values()) == 0


def test_policies_differ_in_what_they_verify():
    verified = {p: run(transport(p), NgramDrafter(3), 1.0)[1].num_verified_tokens for p in POLICIES}
    assert verified["off"] == 0
    assert 0 < verified["fixed(1)"] < verified["fixed(3)"]
    assert 0 < verified["throughput"] < verified["fixed(3)"]


def step(*slots: int, generation: int = 1) -> PlanRequest:
    n = len(slots)
    return PlanRequest(
        step_id=5,
        source_step_id=3,
        num_other_tokens=n,
        num_prefill_tokens=0,
        max_budget=100,
        slot_id=np.array(slots, dtype=np.uint32),
        generation=np.full(n, generation, dtype=np.uint32),
        num_draft_tokens=np.full(n, 3, dtype=np.uint32),
        samples=np.ones(n, dtype=np.bool_),
        weight=np.ones(n, dtype=np.float32),
        context_tokens=np.zeros(n, dtype=np.uint32),
        is_greedy=np.zeros(n, dtype=np.bool_),
    )


def confidences(confidence, *slots: int, generation: int = 1) -> ConfidenceRows:
    n = len(slots)
    return ConfidenceRows(
        source_step_id=3,
        slot_id=np.array(slots, dtype=np.uint32),
        generation=np.full(n, generation, dtype=np.uint32),
        num_draft_tokens=np.full(n, 3, dtype=np.uint32),
        confidence=np.array(confidence, dtype=np.float32),
    )


def budget(rows: ConfidenceRows | None, request: PlanRequest) -> int:
    carrier = transport("threshold(0.6)")
    carrier.publish(rows, request)
    return carrier.read(5).budget


def test_rows_are_matched_by_slot_not_by_order():
    rows = confidences([[0.9] * 3, [0.0] * 3], 2, 1)
    assert budget(rows, step(2)) == 3  # 0.9, 0.81, 0.729
    assert budget(rows, step(1)) == 0


def test_a_row_of_another_generation_is_not_used():
    rows = confidences([[0.9] * 3], 2, generation=1)
    assert budget(rows, step(2, generation=2)) == 0  # the prior, 0.5
    assert budget(None, step(2)) == 0


def test_a_decision_is_read_once_and_for_its_step():
    carrier = transport("fixed(3)")
    carrier.publish(None, step(0, 1))
    assert carrier.read(4) is FallbackReason.LATE
    assert carrier.read(5).budget == 6
    assert carrier.read(5) is FallbackReason.LATE


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(PolicyError, match="'best' is unknown"):
        transport("best")
