"""DSpark behind the drafter seam."""

from __future__ import annotations

import numpy as np
import torch

from specsched_executor.core import DraftInput, DraftOutput
from specsched_executor.drafters.dspark._errors import DrafterCheckpointError
from specsched_executor.drafters.dspark.backbone import Backbone
from specsched_executor.drafters.dspark.cache import DraftCache, NewRows
from specsched_executor.drafters.dspark.checkpoint import DSparkCheckpoint
from specsched_executor.drafters.dspark.heads import DrawKeys, SequentialHeads
from specsched_executor.model.decoder import DecoderModel
from specsched_executor.model.linear import LinearFactory, LinearLayout

__all__ = ["DSparkDrafter", "check_fit"]

_MAX_ROWS_AT_ONCE = 256


class DSparkDrafter:
    """Drafts for the requests of one engine; its own cache follows the target's, row by row.

    The draft length is a run-time argument: a block is always run whole, so that the first n
    drafts are the same however many are wanted, and the output head and the Markov head run for
    the wanted ones alone.
    """

    name = "dspark"

    def __init__(
        self,
        checkpoint: DSparkCheckpoint,
        target: DecoderModel,
        *,
        num_slots: int,
        max_draft_tokens: int,
        max_context_tokens: int | None = None,
        linear_layout: LinearLayout = LinearLayout.AUTO,
    ) -> None:
        """Raises DrafterCheckpointError for a checkpoint made for another target or length."""
        check_fit(checkpoint, target, max_draft_tokens)
        self._config = config = checkpoint.config
        self._max_draft_tokens = max_draft_tokens
        make_linear = LinearFactory(linear_layout, torch.float32)
        embedding, lm_head = target.embedding, target.lm_head
        if config.has_own_embeddings:
            embedding = checkpoint.tensors["embed_tokens.weight"].float()
            lm_head = make_linear(checkpoint.tensors["lm_head.weight"].float())
        # The dtype that is fastest here: drafts need not be exact.
        in_target_dtype = LinearFactory(linear_layout, target.embedding.dtype)
        self._backbone = Backbone(checkpoint, embedding, in_target_dtype)
        self._heads = SequentialHeads(checkpoint, lm_head, in_target_dtype)
        context = max_context_tokens or target.config.max_context_tokens
        self._cache = DraftCache(config, num_slots, context, in_target_dtype.dtype)
        self._no_token_ids = torch.zeros(num_slots, max_draft_tokens, dtype=torch.int64)
        self._no_confidence = torch.full((num_slots, max_draft_tokens), torch.nan)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Target layers whose outputs are the context."""
        return self._config.target_layer_ids

    def draft(self, inputs: DraftInput) -> DraftOutput:
        """Take in the new context rows, then draft for the requests that want tokens."""
        self._cache.claim(inputs.slot_ids, inputs.generations)
        self._take_in(inputs)
        if inputs.max_draft_tokens.numpy().any():
            return self._draft(inputs)
        num = len(inputs.slot_ids)
        return DraftOutput(
            self._no_token_ids[:num], inputs.max_draft_tokens, self._no_confidence[:num]
        )

    @torch.inference_mode()
    def _draft(self, inputs: DraftInput) -> DraftOutput:
        num_requests, k = len(inputs.slot_ids), self._max_draft_tokens
        token_ids = torch.zeros(num_requests, k, dtype=torch.int64)
        confidence = torch.full((num_requests, k), torch.nan)
        limits = inputs.max_draft_tokens.clamp(max=k)
        wanting = torch.nonzero(limits > 0)[:, 0]
        num_tokens = int(limits.max())
        slot_ids = inputs.slot_ids[wanting]
        self._write(self._cache.unwritten(slot_ids))
        anchors = torch.tensor([int(inputs.histories[row][-1]) for row in wanting.tolist()])
        hidden = self._backbone.run(anchors, slot_ids, self._cache)
        keys = DrawKeys(
            seeds=inputs.seeds[wanting],
            positions=self._cache.num_seen(slot_ids) + 1,
            temperatures=inputs.temperatures[wanting],
            step_id=inputs.step_id,
        )
        block = self._heads.draft(hidden[:, :num_tokens], anchors, keys)
        token_ids[wanting, :num_tokens] = block.token_ids
        confidence[wanting, :num_tokens] = block.confidence
        confidence.masked_fill_(torch.arange(k) >= limits[:, None], torch.nan)
        distribution = block.distribution
        if distribution is not None and len(distribution) < num_requests:
            spread = torch.zeros(num_requests, *distribution.shape[1:])
            spread[wanting] = distribution
            distribution = spread
        return DraftOutput(token_ids, limits, confidence, distribution)

    def observe(
        self,
        slot_ids: torch.Tensor,
        generations: torch.Tensor,
        num_verified: torch.Tensor,
        num_accepted: torch.Tensor,
    ) -> None:
        """Nothing to learn: the head was trained, and calibration is the scheduler's."""

    def release(self, slot_id: int) -> None:
        """Give back the slot's pages."""
        self._cache.release(slot_id)

    @torch.inference_mode()
    def _take_in(self, inputs: DraftInput) -> None:
        """Keep the features of new context rows: to project them in every step would cost one that
        drafts nothing a twentieth of its time, and many rows at once take hardly longer."""
        if inputs.feature_start_loc is None:
            return
        num_new = np.diff(inputs.feature_start_loc.numpy())
        if self._cache.can_keep(inputs.slot_ids, num_new):
            self._cache.keep(inputs.slot_ids, num_new, inputs.features)
        else:
            self._write(self._cache.unwritten(inputs.slot_ids))
            self._write(self._cache.append(inputs.slot_ids, num_new, inputs.features))

    def _write(self, rows: NewRows) -> None:
        """In batches: what is in between stays in the processor's caches, and there are few sizes
        of them to compile for."""
        parts = (rows.features, rows.positions, rows.slots)
        for part in zip(*(torch.split(each, _MAX_ROWS_AT_ONCE) for each in parts), strict=True):
            self._backbone.add_context(NewRows(*part), self._cache)


def check_fit(checkpoint: DSparkCheckpoint, target: DecoderModel, max_draft_tokens: int) -> None:
    """Raise DrafterCheckpointError unless the drafter was made for this target and length."""
    config, model = checkpoint.config, target.config
    for name, own, wanted in (
        ("vocab_size", config.vocab_size, model.vocab_size),
        ("hidden_size", config.hidden_size, model.hidden_size),
        ("num_target_layers", config.num_target_layers, model.num_layers),
    ):
        if own != wanted:
            raise DrafterCheckpointError(
                f"the drafter was made for a target with {name} {own}; {model.name} has {wanted}"
            )
    if max_draft_tokens > config.block_size:
        raise DrafterCheckpointError(
            f"max_draft_tokens is {max_draft_tokens}; accepted by this drafter: up to its"
            f" block_size, {config.block_size}"
        )
