"""A training run from target and prompts to a checkpoint, in pieces that continue each other."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specsched_executor.drafters.dspark.checkpoint import save_checkpoint
from specsched_executor.drafters.dspark.config import DSparkConfig
from specsched_executor.tokenizer import Tokenizer
from specsched_executor.training.corpus import Corpus
from specsched_executor.training.forced_metrics import ForcedMetrics, forced_metrics
from specsched_executor.training.manifest import build_manifest
from specsched_executor.training.network import TrainableDrafter
from specsched_executor.training.options import DrafterShape, TrainOptions
from specsched_executor.training.prompts import (
    Prompt,
    encode_prompts,
    is_held_out,
    open_turn,
)
from specsched_executor.training.sampler import PromptBank, Sampler
from specsched_executor.training.target import TrainingTarget
from specsched_executor.training.trainer import Trainer, TrainingProgress

__all__ = ["TrainingRun"]

_OPTIONS, _CORPUS, _HELD_OUT, _STATE = "options.json", "corpus.pt", "held_out.pt", "state.pt"
_SAVE_SECONDS = 60.0
_MEAN_TOKENS_GUESS = 64
"""Sequences shorter than this on average would leave a corpus short of its tokens."""
_NUM_FORCED_SEQUENCES = 256
_MAX_SHARD_BYTES = 15 << 20


@dataclass(frozen=True, slots=True)
class _Clock:
    deadline: float

    def goes_on(self) -> bool:
        return time.monotonic() < self.deadline


class TrainingRun:
    """What `specsched train drafter` does; everything it may need again lies in its folder."""

    def __init__(
        self,
        folder: Path,
        target: TrainingTarget,
        tokenizer: Tokenizer,
        prompts: list[Prompt],
        options: TrainOptions,
        *,
        max_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        """Raises ValueError where the folder holds a run with other options."""
        self._folder, self._target, self._tokenizer = folder, target, tokenizer
        self._prompts, self._options, self._say = prompts, options, say
        self._clock = _Clock(time.monotonic() + max_seconds)
        folder.mkdir(parents=True, exist_ok=True)
        _check_options(folder / _OPTIONS, options)
        self.config = drafter_config(target, tokenizer, options.shape)

    def run(self, out: Path) -> bool:
        """Go on where the run stands; True once the checkpoint lies in `out`."""
        training, held_out = self._split()
        corpus = self._corpus(_CORPUS, training, self._options)
        if corpus is None:
            return False
        checked = self._corpus(_HELD_OUT, held_out or training, _held_out_options(self._options))
        if checked is None:
            return False
        network, trainer = self._trainer(corpus)

        def keep(metrics: ForcedMetrics | None) -> None:
            self._keep(
                out,
                network=network,
                trainer=trainer,
                corpus=corpus,
                held_out=held_out,
                metrics=metrics,
            )

        if not self._train(trainer, lambda: keep(None)):
            return False
        keep(self._metrics(network, checked))
        self._say(f"checkpoint written to {out}")
        return True

    def _split(self) -> tuple[list[Prompt], list[Prompt]]:
        share = self._options.held_out_share
        held_out = [prompt for prompt in self._prompts if is_held_out(prompt, share)]
        return [prompt for prompt in self._prompts if not is_held_out(prompt, share)], held_out

    def _corpus(self, name: str, prompts: list[Prompt], options: TrainOptions) -> Corpus | None:
        """The text of this name, generated as far as time allows; None if that was not enough."""
        path, generation, device = self._folder / name, options.generation, self._target.device
        capacity = max(generation.num_slots, generation.num_tokens // _MEAN_TOKENS_GUESS)
        corpus = Corpus(capacity, generation.max_tokens, device)
        if path.exists():
            corpus.extend(Corpus.load(path, device))
        if corpus.num_tokens >= generation.num_tokens or corpus.is_full:
            return corpus
        started = time.monotonic()
        torch.manual_seed(options.seed + corpus.num_sequences)
        sampler = self._sampler(prompts, options)
        sampler.fill(corpus, generation.num_tokens, self._clock.goes_on)
        corpus.save(path)
        seconds = time.monotonic() - started
        self._say(
            f"{name}: {corpus.num_sequences} sequences, {corpus.num_tokens} tokens,"
            f" {corpus.answer_tokens} of answers, {seconds:.0f} s"
        )
        is_enough = corpus.num_tokens >= generation.num_tokens or corpus.is_full
        return corpus if is_enough else None

    def _sampler(self, prompts: list[Prompt], options: TrainOptions) -> Sampler:
        bank = PromptBank(encode_prompts(self._tokenizer, prompts), _weights(prompts))
        generation = options.generation
        turn = open_turn(self._tokenizer) if generation.prompted_share < 1 or not prompts else None
        return Sampler(self._target, generation, bank, turn, self._tokenizer.eos_token_ids)

    def _trainer(self, corpus: Corpus) -> tuple[TrainableDrafter, Trainer]:
        torch.manual_seed(self._options.seed)
        target = self._target
        network = TrainableDrafter(self.config, target.embedding, target.dtype).to(target.device)
        trainer = Trainer(network, target, corpus, self._options)
        if (self._folder / _STATE).exists():
            trainer.load(self._folder / _STATE)
            self._say(f"continuing after step {trainer.step}")
        return network, trainer

    def _train(self, trainer: Trainer, keep: Callable[[], None]) -> bool:
        """Train as far as time allows, keeping a usable checkpoint on the way; True when done."""
        started = saved = time.monotonic()
        first_step = trainer.step

        def goes_on() -> bool:
            nonlocal saved
            if time.monotonic() - saved > _SAVE_SECONDS:
                trainer.save(self._folder / _STATE)
                keep()
                saved = time.monotonic()
            return self._clock.goes_on()

        def report(progress: TrainingProgress) -> None:
            per_step = (time.monotonic() - started) / max(1, progress.step - first_step) * 1e3
            self._say(
                f"step {progress.step}/{self._options.optimizer.num_steps}"
                f" loss {progress.loss:.4f} ce {progress.cross_entropy:.3f}"
                f" acceptance {progress.acceptance:.4f} (first {progress.first_acceptance:.4f})"
                f" confidence {progress.confidence:.4f} {per_step:.1f} ms/step"
            )

        trainer.run(goes_on, report)
        trainer.save(self._folder / _STATE)
        keep()
        return trainer.is_done

    def _metrics(self, network: TrainableDrafter, corpus: Corpus) -> ForcedMetrics:
        metrics = forced_metrics(
            network,
            self._target,
            corpus,
            num_sequences=_NUM_FORCED_SEQUENCES,
            num_anchors=self._options.optimizer.num_anchors,
            seed=self._options.seed,
        )
        self._say(f"held-out text, teacher-forced: {json.dumps(metrics.to_json())}")
        return metrics

    def _keep(
        self,
        out: Path,
        *,
        network: TrainableDrafter,
        trainer: Trainer,
        corpus: Corpus,
        held_out: list[Prompt],
        metrics: ForcedMetrics | None,
    ) -> None:
        save_checkpoint(out, self.config, network.tensors(), max_shard_bytes=_MAX_SHARD_BYTES)
        manifest = build_manifest(
            self._target,
            self._options,
            prompts=self._prompts,
            held_out=held_out,
            corpus=corpus,
            num_steps=trainer.step,
            metrics=metrics,
        )
        (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def drafter_config(
    target: TrainingTarget, tokenizer: Tokenizer, shape: DrafterShape
) -> DSparkConfig:
    """The drafter of `shape` for a target, its embedding and head shared with it."""
    config = target.config
    layers = shape.target_layer_ids or spread_layers(config.num_layers, shape.num_features)
    mask = shape.mask_token_id
    if mask is None:
        mask = max(tokenizer.special_token_ids, default=config.vocab_size - 1)
    return DSparkConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=shape.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=shape.intermediate_size or config.intermediate_size,
        block_size=shape.block_size,
        mask_token_id=mask,
        target_layer_ids=layers,
        num_target_layers=config.num_layers,
        markov_rank=shape.markov_rank,
        rope_theta=config.rope_theta,
        rms_norm_eps=config.rms_norm_eps,
        max_positions=config.max_context_tokens + shape.block_size,
        window=shape.window,
    )


def spread_layers(num_layers: int, num_features: int) -> tuple[int, ...]:
    """Layers from the second to the last but one, evenly: 1, 8, 15, 21, 28 of 30."""
    first, last = min(1, num_layers - 1), max(num_layers - 2, 0)
    span = max(last - first, 0)
    steps = max(num_features - 1, 1)
    return tuple(sorted({first + round(span * i / steps) for i in range(num_features)}))


def _weights(prompts: list[Prompt]) -> list[float]:
    """Each source counts by the square root of its size: a small one is not drowned."""
    sizes: dict[str, int] = {}
    for prompt in prompts:
        sizes[prompt.source] = sizes.get(prompt.source, 0) + 1
    return [sizes[prompt.source] ** -0.5 for prompt in prompts]


def _held_out_options(options: TrainOptions) -> TrainOptions:
    """A little text of held-out prompts, at temperature 1 alone."""
    generation = options.generation
    small = replace(
        generation,
        num_tokens=max(1, min(200_000, generation.num_tokens // 8)),
        num_slots=min(generation.num_slots, 512),
        prompted_share=1.0,
        temperatures=((1.0, 1.0),),
    )
    return replace(options, generation=small, seed=options.seed + 1)


def _check_options(path: Path, options: TrainOptions) -> None:
    wanted: dict[str, Any] = json.loads(json.dumps(options.to_json()))
    if not path.exists():
        path.write_text(json.dumps(wanted, indent=1))
        return
    held = json.loads(path.read_text())
    if held != wanted:
        different = sorted(key for key in wanted if held.get(key) != wanted[key])
        raise ValueError(f"{path} holds a run with other {', '.join(different)}; give a new folder")
