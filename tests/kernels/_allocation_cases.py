"""Random steps for the allocation op, and its rule written as plainly as can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

KINDS = ("uniform", "ties", "ones", "zeros", "tiny", "invalid", "weighted")


@dataclass(frozen=True)
class Case:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def to(self, device: str) -> Case:
        def move(value: Any) -> Any:
            return value.to(device) if isinstance(value, torch.Tensor) else value

        return Case(
            tuple(move(value) for value in self.args),
            {name: move(value) for name, value in self.kwargs.items()},
        )


def random_confidence(generator: torch.Generator, kind: str, rows: int, k: int) -> torch.Tensor:
    confidence = torch.rand(rows, k, generator=generator)
    if kind == "ties":
        confidence = (confidence * 4).ceil() / 4
    elif kind == "ones":
        confidence = torch.ones(rows, k)
    elif kind == "zeros":
        confidence = torch.where(confidence < 0.5, 0.0, confidence)
        confidence[0, 0] = -0.0
    elif kind == "tiny":
        confidence = confidence * 1e-6
    elif kind == "invalid":
        bad = torch.tensor([float("nan"), float("inf"), -0.25, 1.5])
        pick = torch.randint(0, 4, (rows, k), generator=generator)
        confidence = torch.where(confidence < 0.3, bad[pick], confidence)
    return confidence


def random_case(seed: int, kind: str, num_requests: int, k: int, *, prefill: bool = False) -> Case:
    """A step of `num_requests` requests; the budget is anything from none to more than present."""
    generator = torch.Generator().manual_seed(seed)

    def randint(low: int, high: int, size: int) -> torch.Tensor:
        return torch.randint(low, high, (size,), generator=generator)

    num_slots = num_requests + 3
    confidence = random_confidence(generator, kind, num_slots, k)
    base = torch.ones(num_requests, dtype=torch.int32)
    samples = torch.ones(num_requests, dtype=torch.bool)
    if prefill:
        chunked = randint(0, 4, num_requests) == 0
        base = torch.where(chunked, randint(0, 40, num_requests), base).to(torch.int32)
        samples = ~chunked | (randint(0, 2, num_requests) == 0)
    weights = torch.ones(num_requests)
    if kind == "weighted":
        weights = torch.exp(torch.randn(num_requests, generator=generator))
    num_draft_tokens = randint(0, k + 2, num_requests).to(torch.int32)
    budget = int(randint(0, num_requests * k + 2, 1))
    return Case(
        args=(confidence, num_draft_tokens, weights, budget),
        kwargs={
            "prior": torch.linspace(0.9, 0.4, k),
            "start_positions": randint(0, 10_000, num_requests),
            "padded_rows": int(base.sum()) + num_requests * k + 5,
            "slot_ids": torch.randperm(num_slots, generator=generator)[:num_requests],
            "num_base_rows": base,
            "samples": samples,
        },
    )


def plain_verify_lens(case: Case) -> list[int]:
    """Sort every draft in Python, take the best, count."""
    confidence, num_draft_tokens, weights, budget = case.args
    slots, prior = case.kwargs["slot_ids"], case.kwargs["prior"].numpy()
    table, weight = confidence.numpy(), weights.numpy()
    drafts = []
    for request, slot in enumerate(slots.tolist()):
        survival = np.float32(1)
        samples = bool(case.kwargs["samples"][request])
        if not samples or case.kwargs["num_base_rows"][request] == 0:
            continue
        for position in range(min(int(num_draft_tokens[request]), table.shape[1])):
            value = table[slot, position]
            survival *= value if 0 <= value <= 1 else prior[position]
            drafts.append((-float(np.float32(weight[request] * survival)), position, request))
    lengths = [0] * slots.shape[0]
    for _, _, request in sorted(drafts)[: int(budget)]:
        lengths[request] += 1
    return lengths
