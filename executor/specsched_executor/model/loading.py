"""From a path to a model that is ready to serve."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from specsched_executor.core import ModelConfig
from specsched_executor.model._errors import (
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from specsched_executor.model.attention_plan import plan_attention
from specsched_executor.model.checkpoint import Checkpoint
from specsched_executor.model.decoder import DecoderModel
from specsched_executor.model.default_model import default_model_path
from specsched_executor.model.dummy import DummyCheckpoint
from specsched_executor.model.gguf import GgufCheckpoint
from specsched_executor.model.huggingface import HuggingFaceCheckpoint
from specsched_executor.model.linear import LinearFactory
from specsched_executor.model.options import LoadOptions
from specsched_executor.model.spec import DecoderSpec
from specsched_executor.model.weights import load_weights
from specsched_executor.tokenizer import Tokenizer, TokenizerError

_ACCEPTED = "accepted: a .gguf file, or a Hugging Face folder with config.json and *.safetensors"

_MOST_NAMES: Final = 5


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer.

    source: where it came from. spec: how it is built. dtype: of its weights, as torch names it.
    """

    model: DecoderModel
    tokenizer: Tokenizer
    config: ModelConfig
    source: Path
    spec: DecoderSpec
    dtype: str


def load_model(path: Path | str | None = None, options: LoadOptions | None = None) -> LoadedModel:
    """Load a checkpoint; without a path, the installed default model, or a preset.

    Raises ModelNotFoundError, ModelFormatError or UnsupportedModelError (all ModelLoadError).
    """
    options = options or LoadOptions()
    checkpoint = _open_dummy(path, options) if options.is_dummy else open_checkpoint(path)
    try:
        spec = _limit_context(checkpoint, options.max_context_tokens)
        # What cannot run so is refused here, before minutes of reading weights.
        plan = plan_attention(
            spec,
            torch.device(options.device),
            is_scheduled=options.is_scheduled,
            layout=options.indexer_layout,
        )
        tokenizer = checkpoint.load_tokenizer()
        factory = LinearFactory(
            options.linear_layout, getattr(torch, options.dtype), options.device
        )
        with torch.inference_mode():
            weights = load_weights(checkpoint, factory)
        _check_all_read(checkpoint)
    except TokenizerError as error:
        raise UnsupportedModelError(str(error)) from error
    finally:
        checkpoint.close()
    if factory.device.type == "cuda":
        torch.cuda.empty_cache()  # what weights passed through is free for the KV cache
    return LoadedModel(
        DecoderModel(spec, weights, plan),
        tokenizer,
        spec.config,
        checkpoint.source,
        spec,
        str(options.dtype),
    )


def open_checkpoint(path: Path | str | None = None) -> Checkpoint:
    """The weights as they lie in the file or folder; without a path, of the default model.

    The caller closes it. Raises ModelLoadError.
    """
    path = default_model_path() if path is None else Path(path)
    if not path.exists():
        raise ModelNotFoundError(f"{path} does not exist; {_ACCEPTED}")
    if path.is_file():
        return GgufCheckpoint(path)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelFormatError(f"{path / 'config.json'} is missing; {_ACCEPTED}")
        return HuggingFaceCheckpoint(path)
    raise ModelFormatError(f"{path} is neither a file nor a model folder; {_ACCEPTED}")


def _check_all_read(checkpoint: Checkpoint) -> None:
    """A tensor that nobody reads means that the model would be another than the one trained."""
    spec = checkpoint.spec
    unread = [name for name in checkpoint.unread() if not _is_spare(name, spec)]
    if unread:
        more = f" and {len(unread) - _MOST_NAMES} more" if len(unread) > _MOST_NAMES else ""
        raise ModelFormatError(
            f"{checkpoint.source}: tensors that config.json does not account for:"
            f" {', '.join(unread[:_MOST_NAMES])}{more}"
        )


def _is_spare(name: str, spec: DecoderSpec) -> bool:
    """Whether a model is the same without it: a copy, a constant, or a layer only drafts need."""
    if name == "lm_head.weight":
        return spec.config.tie_word_embeddings
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    is_beyond = layer is not None and int(layer[1]) >= spec.config.num_layers
    return name.endswith(".rotary_emb.inv_freq") or (spec.sparse_mla is not None and is_beyond)


def _open_dummy(path: Path | str | None, options: LoadOptions) -> Checkpoint:
    if options.preset is not None:
        return DummyCheckpoint.of_preset(options.preset)
    return DummyCheckpoint.of_folder(default_model_path() if path is None else Path(path))


def _limit_context(checkpoint: Checkpoint, max_context_tokens: int | None) -> DecoderSpec:
    spec = checkpoint.spec
    trained = spec.config.max_context_tokens
    if max_context_tokens is None:
        return spec
    if max_context_tokens > trained:
        raise UnsupportedModelError(
            f"{checkpoint.source}: max_context_tokens is {max_context_tokens}, "
            f"but the checkpoint was made for {trained}"
        )
    return replace(spec, config=replace(spec.config, max_context_tokens=max_context_tokens))
