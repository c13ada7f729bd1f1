"""A mixture of experts: each token goes through a few of many feed-forward parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_executor.model.experts import Experts, Routing, read_experts
from specsched_executor.model.feed_forward import DenseFeedForward, Gate
from specsched_executor.model.linear import Linear, LinearFactory, LinearLayout
from specsched_executor.model.spec import MixtureSpec
from specsched_executor.model.tensor_reader import TensorReader

__all__ = ["MixtureFeedForward", "Router"]

_SMALLEST_SUM = 1e-20


@dataclass(frozen=True, slots=True)
class Router:
    """Chooses the experts of a token, in float32.

    scores: hidden state -> a logit for each expert. correction: float32 [num_experts], added to
    scores where experts are chosen, not where they are weighted.
    """

    spec: MixtureSpec
    scores: Linear
    correction: torch.Tensor

    def __call__(self, normed: torch.Tensor) -> Routing:
        """[n, hidden_size] -> the experts of each row, and their weights."""
        spec = self.spec
        scores = _sigmoid(self.scores(normed.float()))
        chosen_by = scores + self.correction
        groups = chosen_by.view(len(chosen_by), spec.num_groups, -1)
        group_scores = groups.topk(2, dim=-1).values.sum(dim=-1)
        kept = group_scores.topk(spec.groups_per_token, dim=-1).indices
        is_left_out = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, kept, False)
        chosen_by = groups.masked_fill(is_left_out[..., None], float("-inf")).flatten(1)
        experts = chosen_by.topk(spec.experts_per_token, dim=-1).indices
        weights = scores.gather(1, experts)
        if spec.normalizes:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + _SMALLEST_SUM)
        return Routing(experts, weights * spec.scaling_factor)


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    """The same bits for an element among any others.

    On a CPU the last elements, beyond whole vectors, are computed in another way, which float64
    hides.
    """
    return x.double().sigmoid().float() if x.device.type == "cpu" else x.sigmoid()


@dataclass(frozen=True, slots=True)
class MixtureFeedForward:
    """Implements FeedForward; float32 comes out, as the experts' outputs are summed in it."""

    router: Router
    experts: Experts
    shared: DenseFeedForward | None

    @classmethod
    def read(
        cls, reader: TensorReader, prefix: str, hidden: int, spec: MixtureSpec
    ) -> MixtureFeedForward:
        """The tensors named `prefix` and gate, experts.0.gate_proj, ..., shared_experts, ..."""
        exact = LinearFactory(LinearLayout.AUTO, torch.float32, reader.make_linear.device)
        scores = exact(reader.stacked({f"{prefix}gate": spec.num_experts}, hidden), copy=True)
        correction = reader.vector(f"{prefix}gate.e_score_correction_bias", spec.num_experts)
        shared = None
        if spec.shared_size:
            shared = DenseFeedForward.read(
                reader, f"{prefix}shared_experts.", hidden, spec.shared_size
            )
        return cls(
            Router(spec, scores, correction),
            read_experts(reader, f"{prefix}experts.", hidden, spec),
            shared,
        )

    def __call__(self, normed: torch.Tensor, gate: Gate) -> torch.Tensor:
        """See FeedForward."""
        total = self.experts(normed, self.router(normed), gate)
        return total if self.shared is None else total.add_(self.shared(normed, gate))
