import pytest
import torch
from specsched_executor.core import RequestError, SamplingParams
from specsched_executor.sampling import (
    SamplingTensors,
    draw,
    target_distribution,
    validate_sampling,
)


def params(**changes) -> SamplingTensors:
    return SamplingTensors.of([SamplingParams(**changes)], [0])


def distribution(logits: list[float], **changes) -> list[float]:
    return target_distribution(torch.tensor([logits]), params(**changes))[0].tolist()


def test_temperature_divides_logits():
    expected = torch.softmax(torch.tensor([1.0, 2.0, 4.0]) / 0.5, dim=0).tolist()
    assert distribution([1.0, 2.0, 4.0], temperature=0.5) == pytest.approx(expected)


@pytest.mark.parametrize("cut", [{}, {"top_k": 2}, {"top_p": 0.5}])
def test_the_smallest_temperature_takes_the_likeliest(cut):
    smallest = torch.finfo(torch.float32).smallest_normal * 2**-23
    assert distribution([30.0, 40.0, -40.0], temperature=smallest, **cut) == [0.0, 1.0, 0.0]


def test_top_k_keeps_the_largest_and_their_ties():
    assert distribution([0.0, 1.0, 3.0, 2.0], top_k=2)[:2] == [0.0, 0.0]
    kept = distribution([2.0, 1.0, 2.0, 2.0], top_k=2)
    assert kept == pytest.approx([1 / 3, 0.0, 1 / 3, 1 / 3])


def test_top_k_beyond_the_vocabulary_keeps_all():
    assert distribution([0.0, 1.0], top_k=5) == pytest.approx(distribution([0.0, 1.0]))


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.91, 4), (1.0, 4)]
)
def test_top_p_keeps_the_shortest_list_that_reaches_it(top_p, kept):
    probabilities = torch.tensor([0.2, 0.4, 0.1, 0.3])
    result = torch.tensor(distribution(probabilities.log().tolist(), top_p=top_p))
    best = probabilities >= probabilities.sort(descending=True).values[kept - 1]
    assert torch.equal(result > 0, best)
    assert result.sum().item() == pytest.approx(1)


def test_top_p_of_a_flat_row_reaches_deeper_than_the_candidates():
    logits = torch.linspace(0, 0.5, 5000)
    probabilities = torch.softmax(logits, dim=0)
    result = torch.tensor(distribution(logits.tolist(), top_p=0.9))
    ordered = probabilities.sort(descending=True).values.double()
    num_kept = int((ordered.cumsum(0) - ordered < 0.9).sum())
    assert int((result > 0).sum()) == num_kept > 256


def test_a_row_does_not_depend_on_its_neighbours():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 700, generator=generator) * torch.tensor([[0.1], [1], [3], [1], [5]])
    choices = [
        SamplingParams(temperature=0.7, top_p=0.95),
        SamplingParams(top_k=20, top_p=0.5),
        SamplingParams(),
        SamplingParams(top_k=1),
        SamplingParams(temperature=2.0, top_k=600, top_p=0.999),
    ]
    together = target_distribution(logits, SamplingTensors.of(choices, [0] * 5))
    for row, choice in enumerate(choices):
        alone = target_distribution(logits[row : row + 1], SamplingTensors.of([choice], [0]))
        assert torch.equal(together[row], alone[0])


def test_draw_takes_the_token_whose_share_covers_the_uniform():
    weights = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53], dtype=torch.float64)
    assert draw(weights.expand(6, -1), uniforms).tolist() == [1, 1, 3, 3, 4, 4]


def test_draw_takes_weights_of_any_sum():
    assert draw(torch.tensor([[2.0, 2.0]]), torch.tensor([0.6], dtype=torch.float64)).item() == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": -0.5}, ["temperature", "-0.5", "0 (greedy)"]),
        ({"temperature": float("nan")}, ["temperature", "nan"]),
        ({"top_p": 0.0}, ["top_p", "0.0", "above 0"]),
        ({"top_p": 1.5}, ["top_p", "1.5", "at most 1"]),
        ({"top_k": -1}, ["top_k", "-1", "0 (no limit)"]),
        ({"max_tokens": 0}, ["max_tokens", "0", "1 or more"]),
        ({"min_tokens": -1}, ["min_tokens", "-1"]),
        ({"min_tokens": 9, "max_tokens": 8}, ["min_tokens", "9", "8"]),
        ({"stop": ("a", "")}, ["stop", "non-empty"]),
        ({"stop_token_ids": (100,)}, ["stop_token_ids", "100", "0 to 99"]),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(changes, words):
    with pytest.raises(RequestError) as error:
        validate_sampling(SamplingParams(**changes), vocab_size=100)
    assert all(word in str(error.value) for word in words)


def test_usual_parameters_are_accepted():
    validate_sampling(SamplingParams(temperature=0, top_k=50, top_p=0.9, max_tokens=1), 100)
