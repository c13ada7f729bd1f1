"""Steps that look like those the engine will run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsched_executor.core import KvCache, ModelBatch, TargetModel
from specsched_executor.profiling.options import ProfileOptions


@dataclass(frozen=True, slots=True)
class StepShape:
    """Rows spread over requests that have all read the same context."""

    num_rows: int
    num_requests: int
    context_tokens: int

    @property
    def total_context_tokens(self) -> int:
        """Context of all requests together."""
        return self.num_requests * self.context_tokens


def verification_shape(num_rows: int, options: ProfileOptions, context_tokens: int) -> StepShape:
    """num_rows as requests with half their drafts verified would send them.

    Rows beyond a full verification of all requests are those of a prefill chunk: there, the
    requests just have more rows each.
    """
    rows_per_request = 1 + options.max_draft_tokens // 2
    num_requests = min(options.max_requests, -(-num_rows // rows_per_request))
    longest = -(-num_rows // num_requests)
    return StepShape(num_rows, num_requests, max(context_tokens, longest))


class BatchFactory:
    """Builds batches over one KV cache that is large enough for every shape."""

    def __init__(self, model: TargetModel, shapes: list[StepShape], block_size: int) -> None:
        self._vocab_size = model.config.vocab_size
        self._block_size = block_size
        blocks = max(self._blocks(shape) * shape.num_requests for shape in shapes)
        self.kv_cache: KvCache = model.allocate_kv_cache(blocks, block_size)

    def build(self, shape: StepShape) -> ModelBatch:
        """The last rows of every request, all of them wanted as logits."""
        requests = shape.num_requests
        starts = torch.arange(requests + 1) * shape.num_rows // requests
        lengths = starts.diff()
        request_of_row = torch.repeat_interleave(torch.arange(requests), lengths)
        row_in_request = torch.arange(shape.num_rows) - starts[request_of_row]
        positions = shape.context_tokens - lengths[request_of_row] + row_in_request
        blocks = self._blocks(shape)
        tables = torch.arange(requests * blocks, dtype=torch.int32).view(requests, blocks)
        block_of_row = tables[request_of_row, positions // self._block_size].long()
        return ModelBatch(
            token_ids=torch.randint(0, self._vocab_size, (shape.num_rows,)),
            positions=positions,
            slot_mapping=block_of_row * self._block_size + positions % self._block_size,
            query_start_loc=starts,
            context_lens=torch.full((requests,), shape.context_tokens),
            block_tables=tables,
            logit_rows=torch.arange(shape.num_rows),
        )

    def _blocks(self, shape: StepShape) -> int:
        return -(-shape.context_tokens // self._block_size)
