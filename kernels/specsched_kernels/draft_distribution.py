"""What drafts were sampled from, kept for their verification."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_kernels._checks import check_tensor

__all__ = ["DraftDistribution"]


@dataclass(frozen=True, slots=True)
class DraftDistribution:
    """q(x) = exp(scale * (logit of x - maximum)) / mass, of k positions of each of S slots.

    logits: float32 [S, k, V]. scales, maxima, masses: float32 [S, k]. Logits are kept as they are
    drawn from, since probabilities would cost one more pass over the vocabulary.
    """

    logits: torch.Tensor
    scales: torch.Tensor
    maxima: torch.Tensor
    masses: torch.Tensor

    @classmethod
    def empty(
        cls, num_slots: int, num_positions: int, vocab_size: int, device: torch.device | str = "cpu"
    ) -> DraftDistribution:
        """Distributions of nobody: uniform."""
        positions = (num_slots, num_positions)
        return cls(
            logits=torch.zeros((*positions, vocab_size), device=device),
            scales=torch.ones(positions, device=device),
            maxima=torch.zeros(positions, device=device),
            masses=torch.full(positions, float(vocab_size), device=device),
        )

    @classmethod
    def of(cls, probabilities: torch.Tensor) -> DraftDistribution:
        """The one of these float32 [S, k, V], each row of sum 1."""
        ones = torch.ones_like(probabilities[..., 0])
        return cls(probabilities.log(), ones, torch.zeros_like(ones), ones.clone())

    def store(self, slot_ids: torch.Tensor, probabilities: torch.Tensor) -> None:
        """Keep float32 [R, n, V] as the first n positions of the slots, int64 [R]."""
        given = DraftDistribution.of(probabilities.to(self.logits.device))
        num_positions = probabilities.shape[1]
        for name in self.__slots__:
            getattr(self, name)[slot_ids, :num_positions] = getattr(given, name)

    def probabilities(self, slot_id: int, position: int) -> torch.Tensor:
        """float64 [V]."""
        at = slot_id, position
        depth = (self.logits[at] - self.maxima[at]) * self.scales[at]
        return depth.double().exp() / self.masses[at].double()

    def check(self, shape: tuple[int, ...], device: torch.device) -> None:
        """Raise ValueError, naming the tensor, unless logits have this shape and all the device."""
        check_tensor("draft_distribution.logits", self.logits, shape, torch.float32, device)
        for name in ("scales", "maxima", "masses"):
            tensor = getattr(self, name)
            check_tensor(f"draft_distribution.{name}", tensor, shape[:2], torch.float32, device)
