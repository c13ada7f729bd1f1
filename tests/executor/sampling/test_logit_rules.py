"""Rules on logits against their meaning, one row and token at a time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specsched_executor.core import RequestError, SamplingParams
from specsched_executor.sampling import LogitRules, validate_sampling

VOCAB = 7
token_ids = st.integers(0, VOCAB - 1)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    min_p=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 0.7]),
    frequency_penalty=st.sampled_from([-0.3, 0.0, 2.0]),
    logit_bias=st.dictionaries(token_ids, st.sampled_from([-100.0, 0.5, 3.0])).map(
        lambda biases: tuple(biases.items())
    ),
)


def meaning(row: np.ndarray, sampling: SamplingParams, prompt, output) -> np.ndarray:
    row = row.astype(np.float64)
    for token, bias in sampling.logit_bias:
        row[token] += bias
    for token in {*prompt, *output}:
        factor = sampling.repetition_penalty
        row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
    for token in set(output):
        row[token] -= sampling.frequency_penalty * output.count(token) + sampling.presence_penalty
    p = np.exp((row - row.max()) / sampling.temperature)
    row[p < sampling.min_p * (1 - 1e-5)] = -np.inf
    return row


@settings(deadline=None, max_examples=150)
@given(
    params,
    st.lists(token_ids, min_size=1, max_size=5),
    st.lists(token_ids, max_size=5),
    st.lists(token_ids, max_size=3),
    st.integers(0, 1000),
)
def test_each_row_sees_the_drafts_before_it_as_output(sampling, prompt, output, drafts, seed):
    logits = torch.randn(len(drafts) + 1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    expected = [
        meaning(row.numpy(), sampling, prompt, output + drafts[:j]) for j, row in enumerate(logits)
    ]
    rules = LogitRules.of(sampling, len(prompt))
    if rules is not None:
        # What was committed before this step is counted in two portions.
        rules.apply(logits.clone()[:1], prompt + output[:2], [])
        rules.apply(logits, prompt + output, drafts)
    np.testing.assert_allclose(logits.numpy(), np.array(expected), rtol=1e-4, atol=1e-5)


def test_only_rows_and_tokens_concerned_change():
    logits = torch.arange(12.0).reshape(2, 6) - 4
    rules = LogitRules.of(SamplingParams(presence_penalty=1.0), 1)
    before = logits.clone()
    rules.apply(logits, [5, 2], [3])
    expected = before.clone()
    expected[:, 2] -= 1
    expected[1, 3] -= 1
    assert torch.equal(logits, expected)


def test_min_p_keeps_the_likeliest_whatever_it_is():
    logits = torch.tensor([[0.0, -1.0, 2.0]])
    LogitRules.of(SamplingParams(min_p=1.0), 1).apply(logits, [0], [])
    assert logits.tolist() == [[-math.inf, -math.inf, 2.0]]


def test_logits_that_are_not_numbers_stay_so():
    sampling = SamplingParams(min_p=0.1, repetition_penalty=2.0, logit_bias=((0, 1.0),))
    logits = torch.full((1, 3), torch.nan)
    LogitRules.of(sampling, 1).apply(logits, [0], [])
    assert logits.isnan().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_p": 1.1}, r"min_p is 1\.1; accepted: 0"),
        ({"min_p": math.nan}, "min_p is nan"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty is 0\.0; accepted: 0\.01 to 100"),
        ({"repetition_penalty": 1e-38}, "repetition_penalty is 1e-38; accepted: 0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty is inf"),
        ({"presence_penalty": 2.5}, r"presence_penalty is 2\.5; accepted: -2 to 2"),
        ({"frequency_penalty": math.nan}, "frequency_penalty is nan"),
        ({"logit_bias": ((VOCAB, 1.0),)}, f"token id {VOCAB}; accepted: 0 to {VOCAB - 1}"),
        ({"logit_bias": ((1, 101.0),)}, r"token 1 is 101\.0; accepted: -100 to 100"),
        ({"logit_bias": ((1, 1.0), (1, 2.0))}, "names a token twice"),
        (
            {"logit_bias": ((1, 1.0),) * 1025},
            "logit_bias names 1025 tokens; accepted: at most 1024",
        ),
        ({"stop_token_ids": (1,) * 129}, "stop_token_ids has 129 ids; accepted: at most 128"),
        ({"n": 0}, "n is 0; accepted: 1 to 128"),
        ({"n": 129}, "n is 129"),
        ({"logprobs": -1}, "logprobs is -1; accepted: 0 to 20"),
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21"),
    ],
)
def test_values_out_of_range_are_refused_by_name(changes, message):
    with pytest.raises(RequestError, match=message):
        validate_sampling(SamplingParams(**changes), VOCAB)


def test_bounds_of_the_repetition_penalty_are_accepted_in_float32():
    for bound in (0.01, 100.0):
        as_sent = torch.tensor(bound, dtype=torch.float32).item()
        validate_sampling(SamplingParams(repetition_penalty=as_sent), VOCAB)
