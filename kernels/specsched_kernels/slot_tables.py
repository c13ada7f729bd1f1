"""Per-request state on the device: read at the start of a step, advanced at its end."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import slot_tables as reference

__all__ = ["DraftRanking", "SlotCommit", "SlotTables", "commit_slots", "read_slots", "store_drafts"]

DraftRanking = reference.DraftRanking
SlotCommit = reference.SlotCommit
SlotTables = reference.SlotTables


def read_slots(
    tables: SlotTables,
    slot_ids: torch.Tensor,
    generations: torch.Tensor,
    given_positions: torch.Tensor,
    draft_limits: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each request's rows start and how many drafts it brings: int64 [R], int32 [R].

    slot_ids, generations, given_positions: int64 [R]; draft_limits: int32 [R]. A start that is
    given (0 or more: prefill) is taken, else it is the anchor's, num_tokens - 1. Drafts made for
    another generation do not count; padding (slot -1) starts at 0 and has none.
    Raises ValueError for a tensor of another shape or dtype.
    """
    shape, device = (slot_ids.shape[0],), tables.num_tokens.device
    for name, tensor in (
        ("slot_ids", slot_ids),
        ("generations", generations),
        ("given_positions", given_positions),
    ):
        check_tensor(name, tensor, shape, torch.int64, device)
    check_tensor("draft_limits", draft_limits, shape, torch.int32, device)
    start_positions = torch.empty(shape, dtype=torch.int64, device=device)
    num_draft_tokens = torch.empty(shape, dtype=torch.int32, device=device)
    outputs = (start_positions, num_draft_tokens)
    inputs = (tables, slot_ids, generations, given_positions, draft_limits)
    if device.type == "cpu":
        reference.read_slots(*inputs, *outputs)
    else:
        from specsched_kernels.triton.slot_tables import read_slots as launch

        launch(*inputs, *outputs)
    return outputs


def commit_slots(tables: SlotTables, commit: SlotCommit) -> None:
    """Advance the requests that sampled: new anchor, new number of tokens, no drafts, in place.

    Raises ValueError for a tensor of another shape or dtype.
    """
    shape, device = (commit.slot_ids.shape[0],), tables.num_tokens.device
    check_tensor("slot_ids", commit.slot_ids, shape, torch.int64, device)
    check_tensor("samples", commit.samples, shape, torch.bool, device)
    check_tensor("start_positions", commit.start_positions, shape, torch.int64, device)
    check_tensor("num_base_rows", commit.num_base_rows, shape, torch.int32, device)
    tokens = (*shape, commit.token_ids.shape[1])
    check_tensor("token_ids", commit.token_ids, tokens, torch.int64, device)
    check_tensor("num_accepted", commit.num_accepted, shape, torch.int32, device)
    if device.type == "cpu":
        reference.commit_slots(tables, commit)
    else:
        from specsched_kernels.triton.slot_tables import commit_slots as launch

        launch(tables, commit)


def store_drafts(  # noqa: PLR0917 -- tables, keys, values
    tables: SlotTables,
    slot_ids: torch.Tensor,
    generations: torch.Tensor,
    draft_lens: torch.Tensor,
    token_ids: torch.Tensor,
    confidence: torch.Tensor,
    ranking: DraftRanking | None = None,
) -> None:
    """Keep new drafts of R requests in the tables, in place; nothing for slot -1.

    With a ranking, confidences are calibrated on the way: sigmoid(logit(confidence) / temperature +
    intercept) by class of request and position.

    slot_ids, generations: int64 [R]. draft_lens: int32 [R], drafts that count, at most n.
    token_ids: int64 [R, n]. confidence: float32 [R, n]. Raises ValueError for another shape or
    dtype.
    """
    shape, device = (slot_ids.shape[0],), tables.num_tokens.device
    drafts = (*shape, token_ids.shape[1])
    if drafts[1] > tables.draft_token_ids.shape[1]:
        raise ValueError(
            f"drafts of {drafts[1]} tokens; accepted: at most {tables.draft_token_ids.shape[1]}"
        )
    check_tensor("slot_ids", slot_ids, shape, torch.int64, device)
    check_tensor("generations", generations, shape, torch.int64, device)
    check_tensor("draft_lens", draft_lens, shape, torch.int32, device)
    check_tensor("token_ids", token_ids, drafts, torch.int64, device)
    check_tensor("confidence", confidence, drafts, torch.float32, device)
    if ranking is not None:
        classes = (2, tables.confidence.shape[1])
        check_tensor("ranking.temperature", ranking.temperature, classes, torch.float32, device)
        check_tensor("ranking.intercept", ranking.intercept, classes, torch.float32, device)
        temperatures = ranking.sampling_temperature
        check_tensor("ranking.sampling_temperature", temperatures, shape, torch.float32, device)
        ranked = (*shape, classes[1])
        check_tensor("ranking.ranked", ranking.ranked, ranked, torch.float32, device)
    arguments = (tables, slot_ids, generations, draft_lens, token_ids, confidence, ranking)
    if device.type == "cpu":
        reference.store_drafts(*arguments)
    else:
        from specsched_kernels.triton.slot_tables import store_drafts as launch

        launch(*arguments)
