from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from specsched_kernels.draft_loss import draft_loss
from specsched_kernels.triton import draft_loss as device


def make_case(num_rows, vocab_size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draft = 3 * torch.randn(num_rows, vocab_size, generator=generator)
    target = draft + 2 * torch.randn(num_rows, vocab_size, generator=generator)
    labels = torch.randint(0, vocab_size, (num_rows,), generator=generator)
    weights = torch.rand(2, num_rows, generator=generator)
    return draft.half(), target.half(), labels, *weights


def by_autograd(draft, target, labels, ce_weights, l1_weights):
    logits = draft.double().requires_grad_()
    cross_entropy = F.cross_entropy(logits, labels, reduction="none")
    distance = (logits.softmax(-1) - target.double().softmax(-1)).abs().sum(-1)
    (ce_weights * cross_entropy + l1_weights * distance).sum().backward()
    return cross_entropy.detach(), distance.detach(), logits.grad


def assert_right(found, case):
    expected = by_autograd(*case)
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[1].double(), expected[1], rtol=1e-4, atol=1e-4)
    # The gradient is bfloat16: 8 bits.
    torch.testing.assert_close(found[2].double(), expected[2], rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize(("num_rows", "vocab_size"), [(1, 2), (3, 99), (5, 989)])
def test_reference_is_what_autograd_says(num_rows, vocab_size):
    case = make_case(num_rows, vocab_size)
    assert_right(draft_loss(*case), case)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize(("num_rows", "vocab_size"), [(1, 2), (3, 99), (2, 989)])
def test_device_code_is_what_autograd_says(num_rows, vocab_size, monkeypatch):
    monkeypatch.setattr(device, "_BLOCK", 128)
    case = make_case(num_rows, vocab_size, seed=1)
    found = device.draft_loss(case[0].clone(), *case[1:])
    assert_right(found, case)


def test_equal_distributions_have_no_distance():
    draft, _, labels, ce_weights, l1_weights = make_case(4, 50)
    _, distance, gradient = draft_loss(draft, draft, labels, 0 * ce_weights, l1_weights)
    assert distance.abs().max() == 0
    assert gradient.abs().max() == 0
