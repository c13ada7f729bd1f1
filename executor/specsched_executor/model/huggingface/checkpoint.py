"""A Hugging Face folder as a checkpoint."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import safetensors
import torch

from specsched_executor.model._errors import ModelFormatError, UnsupportedModelError
from specsched_executor.model.huggingface.config import read_spec
from specsched_executor.model.huggingface.facts import ConfigFacts
from specsched_executor.model.huggingface.fp8_blocks import block_shape, multiply_blocks
from specsched_executor.model.huggingface.json_file import read_json
from specsched_executor.tokenizer import Tokenizer, tokenizer_from_huggingface

_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
_SINGLE_FILE: Final = "model.safetensors"
_INDEX_FILE: Final = "model.safetensors.index.json"


class HuggingFaceCheckpoint:
    """Implements Checkpoint over one safetensors file or the shards that an index names."""

    def __init__(self, folder: Path) -> None:
        self.source = folder
        self.spec = read_spec(folder)
        self._block_shape = block_shape(ConfigFacts.read(folder / "config.json"))
        self._read: set[str] = set()
        self._open_files = ExitStack()
        try:
            self._file_of_tensor = self._open_shards()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmap the files."""
        self._open_files.close()

    def load_tokenizer(self) -> Tokenizer:
        """From tokenizer.json and tokenizer_config.json."""
        return tokenizer_from_huggingface(self.source, self.spec.config.eos_token_ids)

    def tensor(self, name: str, out: torch.Tensor) -> torch.Tensor:
        """Fill `out` with the tensor of this name."""
        stored = self._stored(name, tuple(out.shape))
        if stored.dtype in _DTYPES:
            return out.copy_(stored)
        if stored.dtype != torch.float8_e4m3fn or self._block_shape is None:
            accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise UnsupportedModelError(
                f"{self.source}: tensor {name!r} is {stored.dtype}; read: {accepted}, and"
                " float8_e4m3fn where quantization_config is of fp8 blocks"
            )
        rows, columns = out.shape
        scale_shape = (-(-rows // self._block_shape[0]), -(-columns // self._block_shape[1]))
        scales = self._stored(f"{name}_scale_inv", scale_shape).to(out.device, torch.float32)
        multiply_blocks(out.copy_(stored), scales, self._block_shape)
        return out

    def unread(self) -> tuple[str, ...]:
        """Names of the tensors that nobody asked for yet, in order."""
        return tuple(sorted(self._file_of_tensor.keys() - self._read))

    def _stored(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        file = self._file_of_tensor.get(name)
        if file is None:
            raise ModelFormatError(f"{self.source}: tensor {name!r} is missing")
        try:
            stored: torch.Tensor = file.get_tensor(name)
        except safetensors.SafetensorError as error:
            raise ModelFormatError(f"{self.source}: tensor {name!r}: {error}") from error
        if stored.shape != shape:
            raise ModelFormatError(
                f"{self.source}: tensor {name!r} has shape {tuple(stored.shape)}, expected {shape}"
            )
        self._read.add(name)
        return stored

    def _open_shards(self) -> dict[str, Any]:
        """Tensor name -> open file. An index is authoritative; without one, there is one file."""
        index = self.source / _INDEX_FILE
        if not index.is_file():
            file = self._open(self.source / _SINGLE_FILE)
            return dict.fromkeys(file.keys(), file)
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelFormatError(f"{index}: weight_map is missing")
        files = {name: self._open(self._shard(name)) for name in set(weight_map.values())}
        return {tensor: files[name] for tensor, name in weight_map.items()}

    def _shard(self, name: str) -> Path:
        if Path(name).name != name:
            raise ModelFormatError(
                f"{self.source / _INDEX_FILE}: shard {name!r} is no file name of this folder"
            )
        return self.source / name

    def _open(self, path: Path) -> Any:
        if not path.is_file():
            raise ModelFormatError(
                f"{path} is missing; weights are read from {_SINGLE_FILE}, or from the shards that "
                f"{_INDEX_FILE} names"
            )
        try:
            file = safetensors.safe_open(path, framework="pt")
            return self._open_files.enter_context(file)
        except safetensors.SafetensorError as error:
            raise ModelFormatError(
                f"{path} is truncated or no safetensors file: {error}"
            ) from error
