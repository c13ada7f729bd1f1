"""Bias, penalties, min-p and early ends mean on a device what they mean on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from specsched_executor.core import GenerationRequest, SamplingParams
from specsched_executor.device import GraphSizes, judging
from specsched_executor.drafters import NgramDrafter, NoDrafter
from specsched_executor.engine.admission import Admission

from tests.executor.device.tiny import DeviceDriver, DeviceTableDrafter, PaddedTarget
from tests.executor.engine import test_exact_sampling as host
from tests.executor.engine.statistics import looks_like
from tests.executor.engine.test_exact_sampling import EQUAL, FEATURES, PROMPT, SMALL
from tests.executor.engine.test_logprobs import check, told
from tests.executor.engine.test_lossless import SCHEDULES
from tests.executor.engine.test_stopping import PIECES, Bytes
from tests.executor.engine.tiny import Driver, SilentTransport, config, random_table

VOCAB = len(PIECES)


def target(vocab: int, seed: int, concentration: float = 0.5) -> PaddedTarget:
    """As on the host: logits of either sign."""
    made = PaddedTarget(random_table(vocab, seed, concentration), max_context_tokens=128)
    made.logits += 1.5
    return made


def likely_drafter(kind: str, num_slots: int):
    table = target(VOCAB, 0).logits.softmax(-1)[1].numpy()
    return {
        "none": NoDrafter,
        "ngram": lambda: NgramDrafter(3),
        "device": lambda: DeviceTableDrafter(table, num_slots, 3),
    }[kind]()


def driver_of(kind: str, schedule: str, **changes) -> DeviceDriver:
    sizes = config(**changes)
    drafter = likely_drafter(kind, sizes.max_num_seqs)
    driver = DeviceDriver(target(VOCAB, 0), drafter, SCHEDULES[schedule](), sizes)
    driver.admission = Admission(driver.target.config, sizes, Bytes())
    return driver


def submit_all(driver, **sampling):
    return [
        driver.submit([seed % VOCAB, 1, 2, 1], seed=seed, max_tokens=40, **sampling)
        for seed in range(6)
    ]


def outputs(driver, **sampling):
    results = submit_all(driver, **sampling)
    driver.run()
    assert driver.loop.stats().num_failed_steps == 0
    return [(r.token_ids, r.finish_reason, r.last.matched_stop) for r in results]


@pytest.mark.parametrize("feature", EQUAL)
@pytest.mark.parametrize(
    ("kind", "schedule"),
    [
        ("none", "verify all"),
        ("ngram", "verify all"),
        ("ngram", "any budget"),
        ("device", "verify all"),
        ("device", "any budget"),
    ],
)
def test_greedy_output_is_that_of_the_host_without_drafts(kind, feature, schedule):
    greedy = {"temperature": 0.0} | EQUAL[feature]
    driver = driver_of(kind, schedule)
    assert outputs(driver, **greedy) == host.outputs_without_drafts(**greedy)
    assert kind == "none" or driver.loop.stats().num_verified_tokens > 0


@pytest.mark.parametrize("feature", EQUAL)
@pytest.mark.parametrize("kind", ["ngram", "device"])
def test_seeded_output_is_that_of_the_host_without_drafts(kind, feature):
    repeatable = {"repeatable": True} | EQUAL[feature]
    driver = driver_of(kind, "any budget")
    assert outputs(driver, **repeatable) == host.outputs_without_drafts(**repeatable)


@pytest.mark.parametrize("kind", ["ngram", "device"])
def test_rules_outlive_preemption_and_leave_their_slot_with_the_request(kind):
    """Few slots and blocks: slots change hands between requests with rules and without."""
    rules = [{"temperature": 0.0} | EQUAL[name] for name in ("all", "min_p", "frequency_penalty")]
    expected = [
        host.outputs_without_drafts(**sampling) for sampling in (*rules, {"temperature": 0.0})
    ]
    driver = driver_of(kind, "any budget", num_kv_blocks=24, max_num_seqs=4)
    results = [submit_all(driver, **sampling) for sampling in (*rules, {"temperature": 0.0})]
    driver.run()
    assert driver.loop.stats().num_preemptions > 0
    for group, wanted in zip(results, expected, strict=True):
        assert [(r.token_ids, r.finish_reason, r.last.matched_stop) for r in group] == wanted


def test_logprobs_beside_rules_are_those_of_the_model():
    driver = driver_of("device", "verify all")
    prompt = [3, 1, 2, 1]
    result = driver.submit(prompt, seed=1, max_tokens=30, logprobs=2, **FEATURES["all"])
    driver.run()
    history = torch.tensor(prompt + result.token_ids)[len(prompt) - 2 :]
    expected = target(VOCAB, 0).logits[history[:-2], history[1:-1]].log_softmax(-1)
    check(told(result), expected, result.token_ids, num_top=2)


def outputs_of_one(driver) -> list[list[int]]:
    tokens: list[list[int]] = [[], [], []]
    rules = FEATURES["frequency_penalty"] | FEATURES["logit_bias"]
    request = GenerationRequest("a", (1, 2, 1), SamplingParams(seed=5, n=3, max_tokens=30, **rules))
    outputs = driver.admission.accept_all(
        request, lambda delta: tokens[delta.index].extend(delta.token_ids)
    )
    for output in outputs:
        driver.loop.queue(output)
    driver.run()
    return tokens


@pytest.mark.parametrize("kind", ["ngram", "device"])
def test_each_output_of_a_request_is_ruled_by_its_own_tokens(kind):
    expected = outputs_of_one(
        Driver(host.target(VOCAB, 0), NoDrafter(), SilentTransport(), config())
    )
    assert len({tuple(tokens) for tokens in expected}) == 3
    assert outputs_of_one(driver_of(kind, "verify all")) == expected


def test_ruled_requests_do_not_teach():
    driver = driver_of("device", "verify all")
    driver.submit([1, 2], seed=1, max_tokens=40, **FEATURES["presence_penalty"])
    driver.submit([1, 2], seed=1, max_tokens=40)
    driver.run()
    teaching = {
        slot
        for report in driver.transport.reports
        for slot in report.slot_id[report.teaches].tolist()
    }
    assert teaching == {1}


def sampled(feature: str) -> np.ndarray:
    sizes = config(max_num_seqs=64, num_kv_blocks=1024, max_num_batched_tokens=512)
    drafter = DeviceTableDrafter(random_table(SMALL, 4, concentration=1.0)[0], 64, 3)
    driver = DeviceDriver(
        target(SMALL, 3, 1.5),
        drafter,
        host.verify_all(),
        sizes,
        graphs=GraphSizes(rows=(64, 256), draft_requests=(64,), draft_lens=(3,)),
    )
    results = [
        driver.submit(PROMPT, seed=seed, max_tokens=host.NUM_TOKENS, **FEATURES[feature])
        for seed in range(host.NUM_REQUESTS)
    ]
    driver.run()
    assert driver.loop.stats().num_accepted_tokens > 300
    counts = np.zeros((SMALL,) * host.NUM_TOKENS, dtype=np.int64)
    for result in results:
        padding = [0] * (host.NUM_TOKENS - len(result.token_ids))
        counts[tuple(result.token_ids + padding)] += 1
    return counts


def expected_distribution(feature: str) -> np.ndarray:
    return host.joint_distribution(target(SMALL, 3, 1.5).logits.numpy(), FEATURES[feature])


def fits(counts: np.ndarray, expected: np.ndarray) -> bool:
    """looks_like, with all outcomes as one that are expected less than five times."""
    assert not counts[expected == 0].any()
    is_rare = expected * counts.sum() < 5
    lumped = (np.append(each[~is_rare], each[is_rare].sum()) for each in (counts, expected))
    return looks_like(*lumped)


@pytest.mark.parametrize("feature", FEATURES)
def test_whole_outputs_have_the_distribution_that_the_parameters_mean(feature):
    expected, counts = expected_distribution(feature), sampled(feature)
    assert fits(counts, expected)
    assert fits(host.drafted_pair(counts), host.drafted_pair(expected))


def test_the_distribution_is_wrong_where_rows_do_not_see_the_drafts_before_them(monkeypatch):
    apply = judging.apply_logit_rules

    def blind(logits, tables, ruled, logit_start_loc, output_positions, draft_token_ids):
        of_prompt = torch.full_like(draft_token_ids, PROMPT[0])
        apply(logits, tables, ruled, logit_start_loc, output_positions, of_prompt)

    monkeypatch.setattr(judging, "apply_logit_rules", blind)
    expected, counts = expected_distribution("presence_penalty"), sampled("presence_penalty")
    assert not fits(host.drafted_pair(counts), host.drafted_pair(expected))
