"""Reading and writing DSpark checkpoints: config.json beside safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import safetensors
import safetensors.torch
import torch

from specsched_executor.drafters.dspark._errors import DrafterCheckpointError
from specsched_executor.drafters.dspark.config import CONFIG_FILE, DSparkConfig
from specsched_executor.drafters.dspark.layout import tensor_shapes

__all__ = ["DSparkCheckpoint", "load_checkpoint", "save_checkpoint"]

_SINGLE_FILE: Final = "model.safetensors"
_INDEX_FILE: Final = "model.safetensors.index.json"
_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
_MAX_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class DSparkCheckpoint:
    """tensors: exactly those of `tensor_shapes(config)`, in the dtype of the file."""

    config: DSparkConfig
    tensors: Mapping[str, torch.Tensor]


def load_checkpoint(folder: Path | str) -> DSparkCheckpoint:
    """Read a folder of config.json and safetensors, sharded or not.

    Raises DrafterCheckpointError, naming them, for tensors that are missing, unexpected, of another
    shape or not finite: nothing is made up for what a checkpoint does not hold.
    """
    folder = Path(folder)
    config = DSparkConfig.read(folder)
    tensors: dict[str, torch.Tensor] = {}
    for path in _files(folder):
        try:
            tensors |= safetensors.torch.load_file(path)
        except (OSError, safetensors.SafetensorError) as error:
            raise DrafterCheckpointError(f"{path} cannot be read: {error}") from error
    _check_names(folder, config, tensors)
    _check_values(folder, config, tensors)
    return DSparkCheckpoint(config, tensors)


def save_checkpoint(
    folder: Path,
    config: DSparkConfig,
    tensors: Mapping[str, torch.Tensor],
    *,
    max_shard_bytes: int | None = None,
) -> None:
    """Write bfloat16 safetensors, in shards of at most max_shard_bytes each if that is given.

    Raises DrafterCheckpointError when `tensors` are not those of `config`.
    """
    _check_names(folder, config, tensors)
    _check_values(folder, config, tensors)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in sorted(tensors.items())
    }
    shards = _shards(stored, max_shard_bytes)
    if len(shards) == 1:
        safetensors.torch.save_file(shards[0], folder / _SINGLE_FILE)
    else:
        _save_shards(folder, shards)
    (folder / CONFIG_FILE).write_text(json.dumps(config.to_json(), indent=2) + "\n")


def _files(folder: Path) -> list[Path]:
    single, index = folder / _SINGLE_FILE, folder / _INDEX_FILE
    if single.exists():
        return [single]
    if not index.exists():
        raise DrafterCheckpointError(f"{folder} has neither {_SINGLE_FILE} nor {_INDEX_FILE}")
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise DrafterCheckpointError(f"{index} has no weight_map: {error}") from error
    outside = sorted(name for name in names if Path(name).name != name)
    if outside:
        raise DrafterCheckpointError(f"{index} names files outside its folder: {outside}")
    return [folder / name for name in sorted(names)]


def _check_names(folder: Path, config: DSparkConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    expected = tensor_shapes(config).keys()
    for what, names in (
        ("missing", expected - tensors.keys()),
        ("unexpected", tensors.keys() - expected),
    ):
        if names:
            shown = ", ".join(sorted(names)[:_MAX_NAMED])
            rest = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            raise DrafterCheckpointError(f"{folder}: tensors {what}: {shown}{rest}")


def _check_values(folder: Path, config: DSparkConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, shape in tensor_shapes(config).items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            found = tuple(tensor.shape)
            raise DrafterCheckpointError(f"{folder}: {name} has shape {found}, expected {shape}")
        if tensor.dtype not in _FLOATS:
            raise DrafterCheckpointError(
                f"{folder}: {name} is {tensor.dtype}; accepted: float32, float16, bfloat16"
            )
        if not torch.isfinite(tensor).all():
            raise DrafterCheckpointError(f"{folder}: {name} holds values that are not finite")


def _shards(
    tensors: Mapping[str, torch.Tensor], max_bytes: int | None
) -> list[dict[str, torch.Tensor]]:
    shards: list[dict[str, torch.Tensor]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if max_bytes is not None and shards[-1] and filled + tensor.nbytes > max_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.nbytes
    return shards


def _save_shards(folder: Path, shards: list[dict[str, torch.Tensor]]) -> None:
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        safetensors.torch.save_file(shard, folder / name)
        weight_map |= dict.fromkeys(shard, name)
    size = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / _INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")
