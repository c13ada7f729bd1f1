"""The optimisation of a drafter: resumable, the same whatever pieces it runs in."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specsched_executor.training.corpus import Corpus
from specsched_executor.training.losses import LossTerms, training_loss
from specsched_executor.training.muon import Muon
from specsched_executor.training.network import TrainableDrafter
from specsched_executor.training.options import TrainOptions
from specsched_executor.training.target import TrainingTarget

__all__ = ["Trainer", "TrainingProgress"]

_REPORT_STEPS = 100
_CHECK_STEPS = 20


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Means since the last report: acceptance at the block's first row and over all rows."""

    step: int
    loss: float
    cross_entropy: float
    acceptance: float
    first_acceptance: float
    confidence: float


class Trainer:
    """Trains `network` on `corpus`; batches are functions of seed and step alone."""

    def __init__(
        self,
        network: TrainableDrafter,
        target: TrainingTarget,
        corpus: Corpus,
        options: TrainOptions,
    ) -> None:
        self._network, self._target, self._corpus = network, target, corpus
        self._options = options
        self._step = 0
        self._seconds = 0.0
        named = {name: network.parameter(name) for name in network.tensors()}
        matrices = {name: p for name, p in named.items() if _is_matrix(name)}
        self._muon = Muon(matrices)
        rest = [parameter for name, parameter in named.items() if name not in matrices]
        self._adam = torch.optim.AdamW(
            rest, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=target.device.type == "cuda"
        )
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    @property
    def step(self) -> int:
        """Steps done."""
        return self._step

    @property
    def is_done(self) -> bool:
        """Whether the schedule has reached its end."""
        return self._progress() >= 1.0

    def run(self, go_on: Callable[[], bool], report: Callable[[TrainingProgress], None]) -> None:
        """Steps until all are done or `go_on`, asked now and then, says no."""
        means = _Means(self._target.device)
        before, started = self._seconds, time.monotonic()
        while not self.is_done:
            terms = self._run_step()
            means.add(terms, self._options.shape.block_size)
            self._seconds = before + time.monotonic() - started
            if self._step % _REPORT_STEPS == 0 or self.is_done:
                report(means.take(self._step))
            if self._step % _CHECK_STEPS == 0 and not go_on():
                return

    def save(self, path: Path) -> None:
        """Write all that `load` needs, at once or not at all."""
        state = {
            "step": self._step,
            "seconds": self._seconds,
            "network": self._network.tensors(),
            "muon": self._muon.state_dict(),
            "adam": self._adam.state_dict(),
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Continue from what `save` wrote."""
        device = self._target.device
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        self._step, self._seconds = state["step"], state["seconds"]
        for name, tensor in self._network.tensors().items():
            tensor.copy_(state["network"][name])
        self._muon.load_state_dict(state["muon"])
        self._adam.load_state_dict(state["adam"])

    def _run_step(self) -> LossTerms:
        options = self._options.optimizer
        generator = torch.Generator(self._target.device)
        generator.manual_seed(self._options.seed * 1_000_003 + self._step)
        rows = self._rows()
        batch = self._corpus.draw(
            rows, options.num_anchors, self._options.shape.block_size, generator
        )
        terms = training_loss(self._network, self._target, batch, self._options.losses)
        terms.loss.backward()  # type: ignore[no-untyped-call]
        share = _schedule(self._progress(), 1 / options.num_steps, options.warmup_share)
        self._muon.step(options.muon_lr * share)
        for group in self._adam.param_groups:
            group["lr"] = options.adam_lr * share
        self._adam.step()
        self._adam.zero_grad()
        self._step += 1
        return terms

    def _progress(self) -> float:
        """Where the schedule stands, 1 at its end."""
        options = self._options.optimizer
        by_steps = self._step / options.num_steps
        if options.max_train_seconds is None:
            return by_steps
        return max(by_steps, self._seconds / options.max_train_seconds)

    def _rows(self) -> torch.Tensor:
        """The next sequences of this epoch's order, int64 [num_sequences]."""
        size = self._options.optimizer.num_sequences
        per_epoch = max(1, self._corpus.num_sequences // size)
        epoch, index = divmod(self._step, per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self._options.seed + epoch)
            order = torch.randperm(self._corpus.num_sequences, generator=generator)
            self._epoch, self._order = epoch, order.to(self._target.device)
        return self._order[index * size : (index + 1) * size]


class _Means:
    """Sums on the device, so that nothing waits for it between reports."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(5, device=device)
        self._num_steps = 0

    @torch.no_grad()
    def add(self, terms: LossTerms, block_size: int) -> None:
        counted = terms.has_label.float()
        first = counted.clone().view(-1, block_size)
        first[:, 1:] = 0.0
        parts = (
            _mean(terms.cross_entropy, counted),
            _mean(terms.acceptance, counted),
            _mean(terms.acceptance, first.flatten()),
            _mean(terms.confidence, counted),
        )
        self._sums += torch.stack((terms.loss.detach(), *parts))
        self._num_steps += 1

    def take(self, step: int) -> TrainingProgress:
        values = (self._sums / self._num_steps).tolist()
        self._sums.zero_()
        self._num_steps = 0
        return TrainingProgress(step, *values)


def _mean(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (values * weights).sum() / weights.sum().clamp(min=1.0)


def _is_matrix(name: str) -> bool:
    """Whether Muon handles it: the backbone's matrices, not tables of tokens nor the heads."""
    return name == "fc.weight" or (name.endswith("proj.weight") and name.startswith("layers."))


def _schedule(progress: float, step: float, warmup_share: float) -> float:
    """Share of the learning rate at `progress` of 1, one step being `step` of it."""
    if progress < warmup_share:
        return min(1.0, (progress + step) / warmup_share)
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup_share) / (1 - warmup_share)))
