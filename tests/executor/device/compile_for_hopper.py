"""Compiles what steps launch for an H200 on a machine without one: `python -m` prints each kernel.

The interpreter that other tests run device code in accepts what the compiler refuses. Here a real
step runs with tensors of the host that say they are on CUDA: launchers take their device branch,
and every launch ends once its kernel is machine code. Nothing runs, outputs stay 0.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "0"  # read when kernels are defined

import specsched_executor  # noqa: F401 -- sets up OpenMP, which has to precede torch
import torch
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

CUDA = torch.device("cuda", 0)
H200 = SimpleNamespace(multi_processor_count=132, major=9, minor=0)
K = 7
BLOCK_SIZE = 16

_run = JITFunction.run


class CompileOnly:
    """The driver of a device that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class PretendCuda(TorchFunctionMode):
    """Puts on the host what is asked for on CUDA, zeros where memory is not filled."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        args = [_on_host(arg) for arg in args]
        kwargs = {name: _on_host(value) for name, value in (kwargs or {}).items()}
        if func is torch.mm and "out_dtype" in kwargs:
            dtype = kwargs.pop("out_dtype")
            return torch.mm(*args).to(dtype)
        if func in {torch.empty, torch.Tensor.new_empty}:
            return func(*args, **kwargs).zero_()
        if func is torch.empty_like:
            func = torch.zeros_like
        return func(*args, **kwargs)


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.device | str) and str(value).startswith("cuda"):
        return torch.device("cpu")
    return value


@contextmanager
def compiling() -> Iterator[dict[str, list[int]]]:
    """Shared memory, in bytes, of the variants of each kernel launched meanwhile."""
    shared_bytes: dict[str, dict[str, int]] = {}

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = _run(self, *args, grid=grid, warmup=True, **kwargs)
        variants = shared_bytes.setdefault(self.fn.__name__, {})
        variants[kernel.hash] = kernel.metadata.shared
        return kernel

    found: dict[str, list[int]] = {}
    driver.set_active(CompileOnly())
    with (
        mock.patch.object(JITFunction, "run", compile_only),
        mock.patch.object(torch.Tensor, "is_cuda", property(lambda self: True)),
        mock.patch.object(torch.Tensor, "device", property(lambda self: CUDA)),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=H200),
        PretendCuda(),
    ):
        yield found
        found |= {name: sorted(variants.values()) for name, variants in shared_bytes.items()}


def run_steps() -> None:
    """Steps of few requests and many, with prompts and without, of short contexts and long."""
    from specsched_executor.device.device_step import DeviceStep, DraftShape, StepShape
    from specsched_executor.device.dspark import DeviceDSpark
    from specsched_executor.device.step_arrays import DeviceSizes

    from tests.executor.device.models import SMOLLM2, random_decoder, random_drafter

    config = dataclasses.replace(SMOLLM2, num_layers=2, vocab_size=4096, intermediate_size=512)
    model = random_decoder(config, "cuda:0", torch.bfloat16)
    checkpoint = random_drafter(config, K, window=128)
    for max_blocks in (16, 512):
        drafter = DeviceDSpark(checkpoint, model, num_slots=64, max_draft_tokens=K)
        sizes = DeviceSizes(64, 256, K, max_blocks, BLOCK_SIZE)
        step = DeviceStep(model, model.allocate_kv_cache(8, BLOCK_SIZE), drafter, sizes)
        for shape in (StepShape(8, 8, K + 1, False), StepShape(64, 64, 64, True)):
            step.verify(shape)
    for draft in (DraftShape(1, 4, False), DraftShape(64, K, True)):
        step.draft(draft)


def run_the_rest() -> None:
    """What no step above launches: for other models and drafters, and in training."""
    from specsched_kernels.draft_loss import draft_loss
    from specsched_kernels.rms_norm import rms_norm
    from specsched_kernels.rope import rope
    from specsched_kernels.verify_drafts import SamplingInputs, verify_drafts
    from specsched_kernels.write_kv import write_kv

    half = torch.zeros(3, 4096, dtype=torch.float16)
    draft_loss(half, half.clone(), torch.zeros(3, dtype=torch.int64), *torch.zeros(2, 3))
    key = torch.zeros(5, 3, 64, dtype=torch.bfloat16)
    cache = torch.zeros(2, 4, BLOCK_SIZE, 3, 64, dtype=torch.bfloat16)
    positions = torch.zeros(5, dtype=torch.int64)
    write_kv(key, key.clone(), positions, *cache)
    rms_norm(key, torch.ones(64, dtype=torch.bfloat16), 1e-5)
    rope(key.repeat(1, 3, 1), key, positions, torch.zeros(9, 64))
    requests = torch.zeros(2)
    inputs = SamplingInputs(
        logits=torch.zeros(4, 4096),
        logit_start_loc=torch.tensor([0, 2, 4], dtype=torch.int32),
        verify_lens=torch.ones(2, dtype=torch.int32),
        output_positions=requests.long(),
        draft_token_ids=torch.zeros(2, K, dtype=torch.int64),
        temperature=requests,
        top_k=requests.long(),
        top_p=requests,
        seeds=requests.long(),
        keeps_own_sample=requests.bool(),
    )
    verify_drafts(inputs)


def run_sparse_attention() -> None:
    """DeepSeek-V3.2's sizes: for few rows, whose chosen tokens are split, and for many."""
    from specsched_kernels.flatten_rows import flatten_rows
    from specsched_kernels.index_rows import quantize_index_queries, store_index_keys
    from specsched_kernels.indexer_logits import KEY_BYTES, indexer_logits
    from specsched_kernels.latent_rows import store_latent
    from specsched_kernels.select_topk import select_topk
    from specsched_kernels.sparse_mla import sparse_mla

    keys = torch.zeros((2, 64, KEY_BYTES), dtype=torch.uint8)
    latents = torch.zeros(2, 64, 576, dtype=torch.bfloat16)
    angles, ones = torch.zeros(9, 64), torch.ones(128)
    for num_rows in (1, 256):
        tables = torch.zeros((num_rows, 128), dtype=torch.int32)
        starts, lens = torch.arange(num_rows + 1), torch.zeros(num_rows, dtype=torch.int64)
        rows = flatten_rows(starts, lens, tables, num_rows=num_rows, with_block_tables=True)
        halves = torch.zeros(num_rows, 64, 128, dtype=torch.bfloat16)
        slots = torch.zeros(num_rows, dtype=torch.int64)
        store_index_keys(halves[:, 0], ones, ones, 1e-6, slots, slots, angles, keys)
        store_latent(halves[:, :5].flatten(1)[:, :576], torch.ones(512), 1e-6, slots, latents)
        index_query = quantize_index_queries(halves, torch.ones(num_rows, 64), slots, angles)
        of_rows = (tables, rows.request_ids)
        logits = indexer_logits(
            *index_query,
            keys,
            *of_rows,
            rows.context_lens,
            max_context_tokens=8192,
        )
        topk = select_topk(logits, rows.context_lens, k=2048)
        for num_heads in (16, 128):
            query = torch.zeros(num_rows, num_heads, 576, dtype=torch.bfloat16)
            sparse_mla(query, latents, topk, *of_rows, scale=0.1, value_dim=512)


def main() -> None:
    """Print a JSON object: kernel -> bytes of shared memory of its variants."""
    with compiling() as found:
        run_steps()
        run_the_rest()
        run_sparse_attention()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
