"""Finished steps as columns, for compiled code that goes through many at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from specsched_protocol.plan import StepReport
from specsched_protocol.shm import report_ring as ring
from specsched_protocol.shm.layout import REPORT_FIXED_WORDS

__all__ = ["FinishedSteps", "finished_steps", "reports_of"]

Uints = npt.NDArray[np.uint32]


class FinishedSteps(NamedTuple):
    """The reports of n steps, oldest first.

    words: int64 [REPORT_FIXED_WORDS, n], a row for each fixed word of a report, see
    specsched_protocol.shm.report_ring. Of step i the rows row_begin[i] to row_begin[i + 1] are of
    slot_id, generation, num_verified, num_accepted: uint32 [m], and teaches: bool [m], as in
    StepReport. row_begin: int64 [n + 1].
    """

    words: npt.NDArray[np.int64]
    row_begin: npt.NDArray[np.int64]
    slot_id: Uints
    generation: Uints
    num_verified: Uints
    num_accepted: Uints
    teaches: npt.NDArray[np.bool_]


def finished_steps(reports: Iterable[StepReport]) -> FinishedSteps:
    """The same steps as columns."""
    reports = list(reports)
    words = np.zeros((REPORT_FIXED_WORDS, len(reports)), dtype=np.int64)
    floats = words.view(np.float64)
    for step, report in enumerate(reports):
        words[ring.STEP_ID, step] = report.step_id
        words[ring.NUM_TOKENS, step] = report.num_tokens
        words[ring.PADDED_NUM_TOKENS, step] = report.padded_num_tokens
        words[ring.CONTEXT_TOKENS, step] = report.context_tokens
        floats[ring.DRAFT_MS_BITS, step] = report.draft_ms
        floats[ring.VERIFY_MS_BITS, step] = report.verify_ms
        words[ring.NUM_ROWS, step] = len(report.slot_id)
        words[ring.NUM_PREFILL_TOKENS, step] = report.num_prefill_tokens
        words[ring.NUM_SAMPLING, step] = report.num_sampling
        words[ring.ASKED_DRAFT_TOKENS, step] = report.asked_draft_tokens
    nobody = np.zeros(0, dtype=np.uint32)
    return FinishedSteps(
        words=words,
        row_begin=np.append(0, np.cumsum(words[ring.NUM_ROWS])),
        slot_id=np.concatenate([nobody, *(report.slot_id for report in reports)]),
        generation=np.concatenate([nobody, *(report.generation for report in reports)]),
        num_verified=np.concatenate([nobody, *(report.num_verified for report in reports)]),
        num_accepted=np.concatenate([nobody, *(report.num_accepted for report in reports)]),
        teaches=np.concatenate([nobody > 0, *(report.teaches for report in reports)]),
    )


def reports_of(steps: FinishedSteps) -> list[StepReport]:
    """The same steps as records."""
    floats = steps.words.view(np.float64)
    return [_report(steps, floats, step) for step in range(steps.words.shape[1])]


def _report(steps: FinishedSteps, floats: npt.NDArray[np.float64], step: int) -> StepReport:
    words = steps.words[:, step].tolist()
    rows = slice(steps.row_begin[step], steps.row_begin[step + 1])
    return StepReport(
        step_id=words[ring.STEP_ID],
        num_tokens=words[ring.NUM_TOKENS],
        padded_num_tokens=words[ring.PADDED_NUM_TOKENS],
        num_prefill_tokens=words[ring.NUM_PREFILL_TOKENS],
        num_sampling=words[ring.NUM_SAMPLING],
        asked_draft_tokens=words[ring.ASKED_DRAFT_TOKENS],
        context_tokens=words[ring.CONTEXT_TOKENS],
        draft_ms=float(floats[ring.DRAFT_MS_BITS, step]),
        verify_ms=float(floats[ring.VERIFY_MS_BITS, step]),
        slot_id=steps.slot_id[rows],
        generation=steps.generation[rows],
        num_verified=steps.num_verified[rows],
        num_accepted=steps.num_accepted[rows],
        teaches=steps.teaches[rows],
    )
