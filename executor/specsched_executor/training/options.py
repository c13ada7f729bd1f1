"""Options of a training run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["DrafterShape", "GenerationOptions", "LossWeights", "OptimizerOptions", "TrainOptions"]


def _at_least(minimum: float, **values: float) -> None:
    for name, value in values.items():
        if not value >= minimum:
            raise ValueError(f"{name} is {value}; accepted: {minimum} or more")


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """Size of the drafter; what is None follows the target.

    target_layer_ids: None spreads num_features over its depth. mask_token_id: None takes its last
    special token. window: context tokens before the anchor; None sees all.
    """

    num_layers: int = 3
    block_size: int = 7
    markov_rank: int = 64
    window: int | None = 128
    num_features: int = 5
    target_layer_ids: tuple[int, ...] | None = None
    mask_token_id: int | None = None
    intermediate_size: int | None = None

    def __post_init__(self) -> None:
        _at_least(1, num_layers=self.num_layers, block_size=self.block_size)
        _at_least(1, markov_rank=self.markov_rank, num_features=self.num_features)


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """The text trained on, all of it the target's own.

    num_tokens: prompts included. max_tokens: of a sequence; max_answer_tokens: of its answer.
    prompted_share: of sequences that begin with a given prompt; the others begin with a user turn
    that the target writes itself. temperatures: (value, share) of the answers.
    """

    num_tokens: int = 36_000_000
    num_slots: int = 2048
    max_tokens: int = 512
    max_answer_tokens: int = 256
    max_user_tokens: int = 160
    prompted_share: float = 0.45
    temperatures: tuple[tuple[float, float], ...] = ((1.0, 0.65), (0.7, 0.1), (0.0, 0.25))
    steps_between_refills: int = 16

    def __post_init__(self) -> None:
        _at_least(1, num_tokens=self.num_tokens, num_slots=self.num_slots)
        _at_least(8, max_tokens=self.max_tokens, max_answer_tokens=self.max_answer_tokens)
        if not 0 <= self.prompted_share <= 1:
            raise ValueError(f"prompted_share is {self.prompted_share}; accepted: 0 to 1")


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Weights of arXiv 2607.05147, section 3.3; row k of a block weighs exp(-k / decay)."""

    cross_entropy: float = 0.1
    distance: float = 0.9
    confidence: float = 1.0
    decay: float = 4.0


@dataclass(frozen=True, slots=True)
class OptimizerOptions:
    """Muon for matrices of the backbone, AdamW for the rest; linear warm-up, cosine to zero.

    max_train_seconds: the schedule reaches its end by then where num_steps would take longer: a
    slow device makes a shorter run, not one without an end. None: num_steps, however long.
    """

    num_steps: int = 10_000
    max_train_seconds: float | None = None
    num_sequences: int = 24
    num_anchors: int = 120
    muon_lr: float = 0.02
    adam_lr: float = 1e-3
    warmup_share: float = 0.02

    def __post_init__(self) -> None:
        _at_least(1, num_steps=self.num_steps, num_sequences=self.num_sequences)
        _at_least(1, num_anchors=self.num_anchors)


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """One run. seed: of everything drawn. held_out_share: of given prompts, never trained on."""

    shape: DrafterShape = field(default_factory=DrafterShape)
    generation: GenerationOptions = field(default_factory=GenerationOptions)
    losses: LossWeights = field(default_factory=LossWeights)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    seed: int = 20_260_705
    held_out_share: float = 0.1

    def to_json(self) -> dict[str, Any]:
        """For manifests, and to tell whether a run that is resumed is the same one."""
        return asdict(self)
