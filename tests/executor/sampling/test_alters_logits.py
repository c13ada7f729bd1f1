"""Whose drafts teach: only those that met the target's own logits."""

from __future__ import annotations

import pytest
from specsched_executor.core import SamplingParams
from specsched_executor.sampling import alters_logits


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.4, top_k=20, top_p=0.9, min_p=0.05),
        SamplingParams(repetition_penalty=1.03, presence_penalty=-0.1, frequency_penalty=0.1),
    ],
)
def test_ways_of_sampling_and_slight_penalties_teach(params):
    assert not alters_logits(params)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(logit_bias=((5, 0.5),)),
        SamplingParams(repetition_penalty=1.2),
        SamplingParams(repetition_penalty=0.8),
        SamplingParams(presence_penalty=0.5),
        SamplingParams(frequency_penalty=-0.5),
    ],
)
def test_bias_and_strong_penalties_do_not(params):
    assert alters_logits(params)
