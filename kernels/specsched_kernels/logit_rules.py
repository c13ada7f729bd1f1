"""Bias, penalties and early ends, on the logits of the requests that have such rules."""

from __future__ import annotations

import torch

from specsched_kernels._checks import check_tensor
from specsched_kernels.reference import logit_rules as reference
from specsched_kernels.rule_tables import LogitRuleTables

__all__ = ["RuledRequests", "apply_logit_rules", "count_tokens"]

RuledRequests = reference.RuledRequests


def apply_logit_rules(  # noqa: PLR0917 -- what is changed, the rules, the rows
    logits: torch.Tensor,
    tables: LogitRuleTables,
    ruled: RuledRequests,
    logit_start_loc: torch.Tensor,
    output_positions: torch.Tensor,
    draft_token_ids: torch.Tensor,
) -> None:
    """Change the rows of ruled requests, in place; a row that follows j drafts has them for output.

    In this order, which is vLLM's: biases are added; a logit of a seen token is divided by the
    repetition penalty where it is positive, else multiplied; frequency penalty times the token's
    count and, where it is in the output at all, the presence penalty are subtracted. Ids that would
    end the output are -inf at positions below the slot's minimum, whatever else is said of them.

    logits: float32 [m, V]. logit_start_loc: int32 [R+1], first row of each request.
    output_positions: int64 [R], position of the first token that is sampled. draft_token_ids: int64
    [S, k], by slot. Nothing is read back; where no request is ruled, programs end at once.
    Raises ValueError for a tensor of another shape or dtype.
    """
    device, (rows, vocab_size) = logits.device, logits.shape
    num_requests, num_slots = ruled.slot_ids.shape[0], tables.rows.shape[0]
    drafts = (num_slots, draft_token_ids.shape[1])
    _check(tables, ruled, device)
    check_tensor("logits", logits, (rows, vocab_size), torch.float32, device)
    locs = (num_requests + 1,)
    check_tensor("logit_start_loc", logit_start_loc, locs, torch.int32, device)
    check_tensor("output_positions", output_positions, (num_requests,), torch.int64, device)
    check_tensor("draft_token_ids", draft_token_ids, drafts, torch.int64, device)
    arguments = (logits, tables, ruled, logit_start_loc, output_positions, draft_token_ids)
    if device.type == "cpu":
        reference.apply_logit_rules(*arguments)
    else:
        from specsched_kernels.triton.logit_rules import apply_logit_rules as launch

        launch(*arguments)


def count_tokens(
    tables: LogitRuleTables,
    ruled: RuledRequests,
    token_ids: torch.Tensor,
    num_accepted: torch.Tensor,
) -> None:
    """Count what a step committed in the outputs of ruled requests that are penalised, in place.

    token_ids: int64 [R, k+1], of which the first num_accepted, int32 [R], and one more count. The
    table of a slot that is full takes no more distinct tokens.
    Raises ValueError for a tensor of another shape or dtype.
    """
    device, num_requests = num_accepted.device, ruled.slot_ids.shape[0]
    tokens = (num_requests, token_ids.shape[1])
    _check(tables, ruled, device)
    check_tensor("token_ids", token_ids, tokens, torch.int64, device)
    check_tensor("num_accepted", num_accepted, (num_requests,), torch.int32, device)
    if device.type == "cpu":
        reference.count_tokens(tables, ruled, token_ids, num_accepted)
    else:
        from specsched_kernels.triton.logit_rules import count_tokens as launch

        launch(tables, ruled, token_ids, num_accepted)


def _check(tables: LogitRuleTables, ruled: RuledRequests, device: torch.device) -> None:
    check_tensor("tables.rows", tables.rows, tuple(tables.rows.shape), torch.int32, device)
    requests = tuple(ruled.slot_ids.shape)
    check_tensor("ruled.slot_ids", ruled.slot_ids, requests, torch.int64, device)
    check_tensor("ruled.count", ruled.count, (1,), torch.int32, device)
    check_tensor("ruled.indexes", ruled.indexes, requests, torch.int32, device)
