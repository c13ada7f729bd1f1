"""Penalties, bias, min-p and stop strings mean the same with drafts as without."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from specsched_executor.drafters import NgramDrafter, NoDrafter
from specsched_executor.engine.admission import Admission
from specsched_executor.sampling.logit_rules import LogitRules

from tests.executor.engine.statistics import looks_like
from tests.executor.engine.test_lossless import SCHEDULES
from tests.executor.engine.test_stopping import PIECES, Bytes
from tests.executor.engine.tiny import (
    Driver,
    ScriptedTransport,
    SilentTransport,
    StochasticDrafter,
    TableTarget,
    config,
    random_table,
)

FEATURES = {
    "min_p": {"min_p": 0.2},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "presence_penalty": {"presence_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 0.9},
    "encouraged repetition": {"frequency_penalty": -0.6, "repetition_penalty": 0.7},
    "logit_bias": {"logit_bias": ((0, -1.5), (2, 2.5))},
    "all": {
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.5,
        "logit_bias": ((1, 1.0),),
        "min_tokens": 2,
        "stop_token_ids": (0,),
        "top_k": 3,
        "top_p": 0.95,
    },
}


def target(vocab: int, seed: int, concentration: float = 0.5) -> TableTarget:
    """Logits of either sign: repetition treats them differently."""
    made = TableTarget(random_table(vocab, seed, concentration), max_context_tokens=128)
    made.logits += 1.5
    return made


# ===================== Equal, where nothing is left to chance =====================

VOCAB = len(PIECES)
EQUAL = FEATURES | {"stop strings": {"stop": ("ohel!", "rld!", "€"), "min_tokens": 15}}
GREEDY_SCHEDULES = ["verify all", "any budget", "every third plan lost"]


def outputs(drafter, transport, **sampling):
    driver = Driver(target(VOCAB, 0), drafter, transport, config())
    driver.admission = Admission(driver.target.config, config(), Bytes())
    results = [
        driver.submit([seed % VOCAB, 1, 2, 1], seed=seed, max_tokens=40, **sampling)
        for seed in range(6)
    ]
    driver.run()
    ends = [(r.token_ids, r.finish_reason, r.last.matched_stop) for r in results]
    return ends, driver.loop.stats()


@cache
def outputs_without_drafts(**sampling):
    """Once for all that compare with them."""
    return outputs(NoDrafter(), SilentTransport(), **sampling)[0]


def likely_drafter(name):
    """Drafts the unruled target likes: accepted for a while, rejected where a rule differs."""
    table = target(VOCAB, 0).logits.softmax(-1)[1].numpy()
    return {"ngram": NgramDrafter(3), "stochastic": StochasticDrafter(table, 3)}[name]


@pytest.mark.parametrize("schedule", GREEDY_SCHEDULES)
@pytest.mark.parametrize("feature", EQUAL)
@pytest.mark.parametrize("drafter", ["ngram", "stochastic"])
def test_greedy_output_is_that_without_drafts(drafter, feature, schedule):
    greedy = {"temperature": 0.0} | EQUAL[feature]
    expected = outputs_without_drafts(**greedy)
    actual, stats = outputs(likely_drafter(drafter), SCHEDULES[schedule](), **greedy)
    assert actual == expected
    assert stats.num_verified_tokens > 0
    assert feature != "stop strings" or {reason for _, reason, _ in actual} == {"stop"}


@pytest.mark.parametrize("feature", EQUAL)
@pytest.mark.parametrize("schedule", ["verify all", "any budget", "every third plan lost"])
@pytest.mark.parametrize("drafter", ["ngram", "stochastic"])
def test_seeded_output_is_that_without_drafts(drafter, feature, schedule):
    repeatable = {"repeatable": True} | EQUAL[feature]
    expected = outputs_without_drafts(**repeatable)
    actual, stats = outputs(likely_drafter(drafter), SCHEDULES[schedule](), **repeatable)
    assert actual == expected
    assert stats.num_verified_tokens > 0
    assert drafter == "ngram" or stats.num_accepted_tokens > 0


def test_seeds_alone_do_not_make_output_with_stochastic_drafts_repeatable():
    """What a request pays for repeatable output, and that it is needed."""
    several = {}
    for repeatable in (False, True):
        several[repeatable] = [
            outputs(likely_drafter("stochastic"), SCHEDULES[name](), repeatable=repeatable)[0]
            for name in GREEDY_SCHEDULES
        ]
    assert several[True][1:] == several[True][:-1]
    assert several[False][1:] != several[False][:-1]


@pytest.mark.parametrize("feature", ["presence_penalty", "frequency_penalty", "logit_bias", "all"])
def test_the_rules_change_greedy_output(feature):
    greedy = {"temperature": 0.0}
    assert outputs_without_drafts(**greedy) != outputs_without_drafts(**greedy, **FEATURES[feature])


# ===================== Equal in distribution, where drafts are sampled =====================

SMALL = 3
PROMPT = [0, 1, 1]
NUM_TOKENS = 4
NUM_REQUESTS = 1000


def next_distribution(logits: np.ndarray, output: list[int], sampling: dict) -> np.ndarray:
    """Probabilities of the next token, written down from the meaning of each parameter."""
    ruled = logits.astype(np.float64).copy()
    if len(output) < sampling.get("min_tokens", 0):
        ruled[list(sampling["stop_token_ids"])] = -np.inf
    for token, bias in sampling.get("logit_bias", ()):
        ruled[token] += bias
    for token in range(len(ruled)):
        count = output.count(token)
        if count or token in PROMPT:
            repetition = sampling.get("repetition_penalty", 1.0)
            ruled[token] *= 1 / repetition if ruled[token] > 0 else repetition
        ruled[token] -= sampling.get("frequency_penalty", 0.0) * count
        ruled[token] -= sampling.get("presence_penalty", 0.0) * (count > 0)
    p = np.exp(ruled - ruled.max())
    p /= p.sum()
    p[p < sampling.get("min_p", 0.0) * p.max()] = 0.0
    p /= p.sum()
    order = np.argsort(-p)
    kept = order[: sampling.get("top_k") or len(p)]
    before = np.cumsum(p[kept]) - p[kept]
    kept = kept[before < sampling.get("top_p", 1.0) * p[kept].sum()]
    result = np.zeros_like(p)
    result[kept] = p[kept]
    return result / result.sum()


def joint_distribution(logits: np.ndarray, sampling: dict) -> np.ndarray:
    """float64 [V] * NUM_TOKENS: of whole outputs; those that stop early count as padded with 0s."""
    joint = np.zeros((SMALL,) * NUM_TOKENS)
    for output in itertools.product(range(SMALL), repeat=NUM_TOKENS):
        history, probability, padded = list(PROMPT), 1.0, False
        for position, token in enumerate(output):
            if padded:
                probability *= token == 0
                continue
            rows = logits[history[-2], history[-1]]
            probability *= next_distribution(rows, list(output[:position]), sampling)[token]
            history.append(token)
            padded = token in sampling.get("stop_token_ids", ())
        joint[output] = probability
    assert math.isclose(joint.sum(), 1.0)
    return joint


def sampled(drafter, transport, sampling) -> np.ndarray:
    sizes = config(max_num_seqs=64, num_kv_blocks=1024, max_num_batched_tokens=512)
    driver = Driver(target(SMALL, 3, 1.5), drafter, transport, sizes)
    results = [
        driver.submit(PROMPT, seed=seed, max_tokens=NUM_TOKENS, **sampling)
        for seed in range(NUM_REQUESTS)
    ]
    driver.run()
    assert isinstance(drafter, NoDrafter) or driver.loop.stats().num_accepted_tokens > 300
    counts = np.zeros((SMALL,) * NUM_TOKENS, dtype=np.int64)
    for result in results:
        counts[tuple(result.token_ids + [0] * (NUM_TOKENS - len(result.token_ids)))] += 1
    return counts


def drafted_pair(joint: np.ndarray) -> np.ndarray:
    """[V, V]: of the second and third token, the first that one draft can bring together."""
    return joint.sum(axis=(0, 3))


def verify_all() -> ScriptedTransport:
    return ScriptedTransport(lambda rows, request: int(request.num_draft_tokens.sum()))


def stochastic_drafter() -> StochasticDrafter:
    return StochasticDrafter(random_table(SMALL, 4, concentration=1.0)[0], 3)


@pytest.mark.parametrize(
    ("speculation", "feature"), [("off", "all"), *(("on", feature) for feature in FEATURES)]
)
def test_whole_outputs_have_the_distribution_that_the_parameters_mean(speculation, feature):
    expected = joint_distribution(target(SMALL, 3, 1.5).logits.numpy(), FEATURES[feature])
    if speculation == "on":
        counts = sampled(stochastic_drafter(), verify_all(), FEATURES[feature])
    else:
        counts = sampled(NoDrafter(), SilentTransport(), FEATURES[feature])
    assert looks_like(counts.ravel(), expected.ravel())
    assert looks_like(drafted_pair(counts).ravel(), drafted_pair(expected).ravel())


def test_the_distribution_is_wrong_where_rows_do_not_see_the_drafts_before_them(monkeypatch):
    feature = "presence_penalty"
    apply = LogitRules.apply

    def blind(rules, logits, tokens, drafts):
        for row in range(len(logits)):
            apply(rules, logits[row : row + 1], tokens, [])

    monkeypatch.setattr(LogitRules, "apply", blind)
    expected = joint_distribution(target(SMALL, 3, 1.5).logits.numpy(), FEATURES[feature])
    counts = sampled(stochastic_drafter(), verify_all(), FEATURES[feature])
    assert not looks_like(drafted_pair(counts).ravel(), drafted_pair(expected).ravel())


def test_a_request_without_rules_has_none():
    driver = Driver(target(SMALL, 3), NoDrafter(), SilentTransport(), config())
    driver.submit(PROMPT, temperature=0.7, top_k=2, top_p=0.5, seed=1, min_tokens=1, max_tokens=2)
    driver.submit(PROMPT, temperature=0.0, min_p=0.5)
    assert [request.logit_rules for request in driver.active.values()] == [None, None]
