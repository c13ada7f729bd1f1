"""DSpark behind the seam of device drafters."""

from __future__ import annotations

import torch
from specsched_kernels.draft_distribution import DraftDistribution
from specsched_kernels.draw_drafts import DraftDraws
from specsched_kernels.window_pages import WindowPages, place_blocks, place_context

from specsched_executor.device.drafter import ContextRows, DraftJob
from specsched_executor.device.dspark.backbone import DeviceBackbone
from specsched_executor.device.dspark.heads import DeviceHeads
from specsched_executor.drafters.dspark import DSparkCheckpoint
from specsched_executor.drafters.dspark.drafter import check_fit
from specsched_executor.model import DecoderModel
from specsched_executor.model.linear import DeviceLinear

__all__ = ["DeviceDSpark"]


class DeviceDSpark:
    """Takes context in from the rows that were verified, then drafts a block per request.

    A block is always run whole, so that the first n drafts are the same however many are wanted.
    """

    name = "dspark"
    is_idle = False

    def __init__(
        self,
        checkpoint: DSparkCheckpoint,
        target: DecoderModel,
        *,
        num_slots: int,
        max_draft_tokens: int,
        max_context_tokens: int | None = None,
    ) -> None:
        """Raises DrafterCheckpointError for a checkpoint made for another target or length."""
        check_fit(checkpoint, target, max_draft_tokens)
        self._config = config = checkpoint.config
        context = max_context_tokens or target.config.max_context_tokens
        embedding, lm_head = target.embedding, target.lm_head
        device, dtype = embedding.device, embedding.dtype
        if config.has_own_embeddings:
            embedding = checkpoint.tensors["embed_tokens.weight"].to(device, dtype)
            weight = checkpoint.tensors["lm_head.weight"].to(device, dtype)
            lm_head = DeviceLinear(weight, widens=True)
        window = min(config.window or context, context)
        self._pages = WindowPages(window, config.block_size, config.mask_token_id)
        # A step may verify a block beyond the last position that is ever committed.
        max_positions = context + 2 * (config.block_size + 1)
        self._backbone = DeviceBackbone(
            checkpoint, embedding, self._pages, num_slots, max_positions
        )
        self._heads = DeviceHeads(checkpoint, lm_head, embedding)
        self._distribution = DraftDistribution.empty(
            num_slots, max_draft_tokens, config.vocab_size, device
        )

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Target layers whose outputs are the context."""
        return self._config.target_layer_ids

    @property
    def distribution(self) -> DraftDistribution | None:
        """See DeviceDrafter."""
        return self._distribution

    def take_in(self, rows: ContextRows) -> None:
        """Store the context that the step committed."""
        features = torch.cat([rows.features[layer] for layer in self.feature_layers], dim=-1)
        dtype = self._backbone.dtype
        slots = place_context(self._pages, rows.committed)
        self._backbone.add_context(features.to(dtype), rows.committed.row_positions, slots)

    def draft(self, job: DraftJob) -> tuple[torch.Tensor, torch.Tensor]:
        """See DeviceDrafter."""
        requests = job.requests
        blocks = place_blocks(self._pages, job.tables, requests.slot_ids, requests.next_draft_lens)
        hidden = self._backbone.run(blocks)[:, : job.num_tokens]
        draws = None
        if job.draws:
            draws = DraftDraws(
                temperatures=requests.draft_temperature,
                seeds=requests.seeds,
                positions=blocks.num_tokens,
                step_id=job.step_id,
                slot_ids=blocks.live_slot_ids,
                kept=self._distribution,
            )
        return self._heads.draft(hidden, blocks.anchor_ids, draws)
