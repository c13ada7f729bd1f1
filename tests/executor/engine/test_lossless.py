"""The output distribution is the target's, whatever the scheduler does."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from specsched_executor.drafters import NgramDrafter, NoDrafter
from specsched_executor.engine import FallbackPolicy
from specsched_executor.engine.confidence_gate import ConfidenceGate
from specsched_executor.transport.in_process import InProcessTransport
from specsched_protocol.plan import StepDecision
from specsched_protocol.v1 import plan_pb2

from tests.executor.engine.statistics import looks_like
from tests.executor.engine.tiny import (
    Driver,
    ScriptedTransport,
    SilentTransport,
    StochasticDrafter,
    TableTarget,
    config,
    random_table,
)

VOCAB = 6


def spread_budgets(rows, request):
    """Every budget from none to all, step by step."""
    return request.step_id * 7 % (int(request.num_draft_tokens.sum()) + 1)


SCHEDULES = {
    "no scheduler": SilentTransport,
    "verify all": lambda: ScriptedTransport(lambda rows, request: 12),
    "verify none": lambda: ScriptedTransport(lambda rows, request: 0),
    "one each": lambda: ScriptedTransport(lambda rows, request: 12, max_verify_len=1),
    "any budget": lambda: ScriptedTransport(spread_budgets),
    "every third plan lost": lambda: ScriptedTransport(spread_budgets, lost=3),
}


def outputs(drafter, transport, *, temperature, num_requests=12):
    driver = Driver(TableTarget(random_table(VOCAB, 0)), drafter, transport, config())
    results = [
        driver.submit([seed % VOCAB, 1, 2], temperature=temperature, seed=seed, max_tokens=40)
        for seed in range(num_requests)
    ]
    driver.run()
    return [result.token_ids for result in results], driver.loop.stats()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("drafter", ["ngram", "stochastic"])
def test_greedy_output_does_not_depend_on_the_schedule(schedule, drafter):
    expected, _ = outputs(NoDrafter(), SilentTransport(), temperature=0.0)
    drafters = {
        "ngram": NgramDrafter(3),
        "stochastic": StochasticDrafter(random_table(VOCAB, 0)[1], 3),
    }
    actual, stats = outputs(drafters[drafter], SCHEDULES[schedule](), temperature=0.0)
    assert actual == expected
    assert stats.num_drafted_tokens > 100
    assert (stats.num_verified_tokens == 0) == (schedule == "verify none")
    assert (stats.num_accepted_tokens == 0) == (schedule == "verify none")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_seeded_output_with_deterministic_drafts_does_not_depend_on_the_schedule(schedule):
    expected, _ = outputs(NoDrafter(), SilentTransport(), temperature=1.0)
    actual, stats = outputs(NgramDrafter(3), SCHEDULES[schedule](), temperature=1.0)
    assert actual == expected
    assert stats.num_drafted_tokens > 100


def transition_counts(results, vocab):
    """[V, V, V]: how often each token followed each pair in the outputs."""
    counts = np.zeros((vocab, vocab, vocab), dtype=np.int64)
    for tokens in results:
        for a, b, c in zip(tokens, tokens[1:], tokens[2:], strict=False):
            counts[a, b, c] += 1
    return counts


@pytest.mark.parametrize("schedule", ["verify all", "any budget", "every third plan lost"])
def test_sampled_output_with_stochastic_drafts_has_the_targets_distribution(schedule):
    vocab = 3
    table = random_table(vocab, 3, concentration=1.5)
    drafter = StochasticDrafter(random_table(vocab, 4, concentration=1.0)[0], 3)
    sizes = config(max_num_seqs=32, num_kv_blocks=1024, max_num_batched_tokens=256)
    driver = Driver(
        TableTarget(table, max_context_tokens=128), drafter, SCHEDULES[schedule](), sizes
    )
    results = [driver.submit([0, 1], seed=seed, max_tokens=100) for seed in range(160)]
    driver.run()
    counts = transition_counts([result.token_ids for result in results], vocab)
    for pair in np.ndindex(vocab, vocab):
        assert looks_like(counts[pair], table[pair])
    assert driver.loop.stats().num_accepted_tokens > 1000


# ===================== The paper's counterexample =====================
#
# arXiv 2607.05147, appendix A. The target says A 0.70, B 0.30 whatever came before. The drafter
# proposes A or B evenly, then is sure to be right after A and sure to be wrong after B. A step of
# one row costs 1, of two or three rows 2: verifying one draft (0.8 expected) does not pay, two pay
# after A (1 + 0.8 + 0.8 over 2) and not after B. A scheduler that sees the second confidence, hence
# the first token, before it admits the first draft keeps every A and redraws every B:
# 0.5 + 0.5 * 0.7 = 0.85.

A, B, C = 0, 1, 2
TARGET = np.broadcast_to([0.7, 0.3, 0.0], (3, 3, 3))
DRAFT_FIRST = [0.5, 0.5, 0.0]
OVERLAP = {C: 0.8, A: 1.0, B: 0.0}
NUM_REQUESTS = 12
NUM_STEPS = 900


class AppendixDrafter(StochasticDrafter):
    """q(x0) even, q(x1 | A) the target's, q(x1 | B) impossible; confidences are exact."""

    def __init__(self) -> None:
        table = [[0.7, 0.3, 0.0], [0.0, 0.0, 1.0], DRAFT_FIRST]
        overlap = torch.tensor([OVERLAP[token] for token in (A, B, C)])
        super().__init__(np.array(table), 2, lambda before: overlap[before])

    def first_tokens(self, inputs):
        return torch.full((len(inputs.histories),), C)


class FullDrafts(InProcessTransport):
    """Drafts both tokens whatever was learned: drafting none is nearly as fast here."""

    def read(self, step_id):
        answer = super().read(step_id)
        is_decision = isinstance(answer, StepDecision)
        return replace(answer, next_draft_tokens=2) if is_decision else answer


def throughput_policy() -> InProcessTransport:
    """The scheduler's own `throughput` over the staircase 1, 2, 2 ms."""
    stairs = [plan_pb2.VerifyCost(tokens=n, ms=[ms]) for n, ms in ((1, 1.0), (2, 2.0), (3, 2.0))]
    cost = plan_pb2.CostModel(verify=stairs, capture_limit=3)
    return FullDrafts("throughput", cost, max_requests=1, max_draft_tokens=2)


class LeakyGate(ConfidenceGate):
    """Breaks the order: the confidences of step t's own drafts are in the plan for t."""

    def read_plan(self, step_id, until_ns=0):
        if self._withheld is not None and self.last_request is not None:
            self._transport.publish(self._withheld, self.last_request)
        return super().read_plan(step_id)

    last_request = None

    def publish(self, make_request):
        self.last_request = super().publish(make_request)
        return self.last_request


def share_of_a(gate) -> float:
    """Share of A among the tokens that stood where a step's first draft did.

    Those are the first tokens of the deltas, but for the prefill's and the last few, which had
    fewer than two drafts.
    """
    transport = throughput_policy()
    # Steps without a plan verify nothing, so that every admission is the scheduler's.
    sizes = config(max_num_seqs=1, max_draft_tokens=2, fallback=FallbackPolicy.parse("off"))
    driver = Driver(TableTarget(TARGET), AppendixDrafter(), transport, sizes, gate)
    results = [driver.submit([C], seed=seed, max_tokens=200) for seed in range(NUM_REQUESTS)]
    driver.run()
    assert driver.loop.stats().num_verified_tokens > 100 * NUM_REQUESTS / 2
    firsts = [
        delta.token_ids[0] for result in results for delta in result.deltas[1:] if has_drafts(delta)
    ][:NUM_STEPS]
    assert len(firsts) == NUM_STEPS
    assert set(firsts) == {A, B}
    return firsts.count(A) / NUM_STEPS


def has_drafts(delta) -> bool:
    return 200 - (delta.num_output_tokens - len(delta.token_ids)) >= 3


SIGMA = (0.7 * 0.3 / NUM_STEPS) ** 0.5


def test_the_appendix_counterexample_stays_unbiased():
    assert abs(share_of_a(ConfidenceGate) - 0.70) < 4 * SIGMA


def test_the_appendix_counterexample_shows_its_bias_when_the_order_is_broken():
    assert abs(share_of_a(LeakyGate) - 0.85) < 4 * SIGMA
