import numpy as np
import torch
from specsched_executor.sampling import Purpose, keyed_uniforms


def test_a_uniform_depends_on_its_key_alone():
    seeds = torch.tensor([3, 3, 9, 2**62])
    positions = torch.tensor([5, 6, 5, 0])
    together = keyed_uniforms(seeds, positions, Purpose.SAMPLE)
    alone = [
        keyed_uniforms(seeds[i : i + 1], positions[i : i + 1], Purpose.SAMPLE).item()
        for i in range(4)
    ]
    assert together.tolist() == alone
    grid = keyed_uniforms(seeds[:, None], positions[None, :], Purpose.SAMPLE)
    assert torch.equal(grid.diagonal(), together)


def test_values_lie_below_one_and_fill_the_interval():
    values = keyed_uniforms(torch.tensor(1), torch.arange(200_000), Purpose.SAMPLE)
    assert values.dtype == torch.float64
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values.numpy(), bins=64, range=(0, 1))[0]
    expected = 200_000 / 64
    # 63 degrees of freedom: mean 63, standard deviation 11.2.
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 4.5 * 11.2


def _correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return abs(float(np.corrcoef(a.numpy(), b.numpy())[0, 1]))


def test_neighbouring_keys_are_uncorrelated():
    positions, seed = torch.arange(100_000), torch.tensor(7)
    base = keyed_uniforms(seed, positions, Purpose.SAMPLE)
    others = [
        keyed_uniforms(seed, positions, Purpose.ACCEPT),
        keyed_uniforms(seed, positions + 1, Purpose.SAMPLE),
        keyed_uniforms(seed + 1, positions, Purpose.SAMPLE),
        keyed_uniforms(seed, positions, Purpose.SAMPLE, counter=1),
        keyed_uniforms(positions, seed, Purpose.SAMPLE),
    ]
    # The correlation of independent values has a standard deviation of 0.0032 here.
    assert all(_correlation(base, other) < 0.015 for other in others)
