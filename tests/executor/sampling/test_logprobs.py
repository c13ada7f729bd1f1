import math

import pytest
import torch
from specsched_executor.core import TokenLogprobs
from specsched_executor.sampling import derived_seed, token_logprobs


@pytest.mark.parametrize("num_rows", [1, 64, 129])
def test_they_are_the_log_softmax_of_each_row(num_rows):
    logits = torch.randn(num_rows, 11, generator=torch.Generator().manual_seed(num_rows)) * 4
    expected = logits.double().log_softmax(-1)
    tokens = [row % 11 for row in range(num_rows)]
    counts = [row % 4 for row in range(num_rows)]
    found = token_logprobs(logits, tokens, counts)
    for row, told in enumerate(found):
        assert told.logprob == pytest.approx(float(expected[row, tokens[row]]), abs=1e-5)
        top = expected[row].topk(counts[row])
        assert told.top_token_ids == tuple(top.indices.tolist())
        assert told.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-5)


def test_no_more_alternatives_than_tokens_there_are():
    (told,) = token_logprobs(torch.zeros(1, 3), [1], [20])
    assert len(told.top_token_ids) == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_are_not_finite_tell_nan(bad):
    logits = torch.zeros(2, 3)
    logits[0, 2] = bad
    broken, sound = token_logprobs(logits, [0, 0], [0, 0])
    assert math.isnan(broken.logprob)
    assert sound == TokenLogprobs(pytest.approx(-math.log(3)), (), ())


def test_outputs_of_a_request_have_seeds_of_their_own():
    assert derived_seed(7, 0) == 7
    seeds = {derived_seed(seed, index) for seed in range(50) for index in range(128)}
    assert len(seeds) == 50 * 128
    assert all(0 <= seed < 1 << 63 for seed in seeds)
