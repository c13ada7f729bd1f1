"""Ragged batches over a paged cache, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from specsched_executor.core import PAD_SLOT, KvCache, ModelBatch
from specsched_executor.model import DecoderModel


@dataclass(eq=False)
class Sequence:
    """A request's tokens; `done` of them are in the cache, in `blocks`."""

    token_ids: torch.Tensor
    blocks: list[int]
    done: int = 0


@dataclass
class Driver:
    """Feeds chunks of sequences to a model and collects the logits of every row."""

    model: DecoderModel
    block_size: int = 16
    num_blocks: int = 64
    cache: KvCache = field(init=False)

    def __post_init__(self) -> None:
        self.cache = self.model.allocate_kv_cache(self.num_blocks, self.block_size)
        self._free = torch.randperm(self.num_blocks).tolist()

    def sequence(self, token_ids: torch.Tensor) -> Sequence:
        count = -(-len(token_ids) // self.block_size)
        return Sequence(token_ids, [self._free.pop() for _ in range(count)])

    def run(
        self, chunks: list[tuple[Sequence, int]], *, padding: int = 0, layers: tuple[int, ...] = ()
    ):
        """Runs the next `count` tokens of each sequence; returns logits per sequence and output."""
        tokens, positions, slots = [], [], []
        for sequence, count in chunks:
            span = torch.arange(sequence.done, sequence.done + count)
            tokens.append(sequence.token_ids[span])
            positions.append(span)
            blocks = torch.tensor(sequence.blocks)[span // self.block_size]
            slots.append(blocks * self.block_size + span % self.block_size)
            sequence.done += count
        counts = [count for _, count in chunks]
        width = max(len(sequence.blocks) for sequence, _ in chunks)
        tables = torch.full((len(chunks), width), -1, dtype=torch.int32)
        for row, (sequence, _) in enumerate(chunks):
            tables[row, : len(sequence.blocks)] = torch.tensor(sequence.blocks)
        zeros, device = torch.zeros(padding, dtype=torch.int64), self.model.device
        batch = ModelBatch(
            token_ids=torch.cat((*tokens, zeros)).to(device),
            positions=torch.cat((*positions, zeros)).to(device),
            slot_mapping=torch.cat((*slots, torch.full((padding,), PAD_SLOT))).to(device),
            query_start_loc=torch.tensor([0, *counts]).cumsum(0).to(device),
            context_lens=torch.tensor([sequence.done for sequence, _ in chunks]).to(device),
            block_tables=tables.to(device),
            logit_rows=torch.arange(sum(counts)).to(device),
            feature_layers=layers,
        )
        output = self.model.forward(batch, self.cache)
        return list(output.logits.split(counts)), output
