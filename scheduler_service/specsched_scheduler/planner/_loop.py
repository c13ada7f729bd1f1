"""The planner loop: wait, read, decide, write. Compiled, without the GIL, without allocation."""

from __future__ import annotations

from typing import Any

import numpy as np
from specsched_protocol.compiling import njit
from specsched_protocol.plan import NO_BUDGET_CAP
from specsched_protocol.shm import lane
from specsched_protocol.shm.atomics import (
    float64_to_bits,
    load_acquire,
    load_relaxed,
    store_relaxed,
)
from specsched_protocol.shm.plan_area import latest_publication, read_confidences, read_request
from specsched_protocol.shm.plan_arrays import (
    CONFIDENCE_INDEX,
    MAX_BUDGET,
    NUM_OTHER_TOKENS,
    NUM_PREFILL_TOKENS,
    NUM_REQUESTS,
    SOURCE_STEP_ID,
    STEP_ID,
)
from specsched_protocol.shm.seqlock import EMPTY, INVALID, OK, TORN

from specsched_scheduler.decision.codes import DecisionFlags, PolicyCode
from specsched_scheduler.decision.fast import decide_step
from specsched_scheduler.decision.row_flags import row_flags
from specsched_scheduler.decision.step import StepInput
from specsched_scheduler.planner import _ring as ring
from specsched_scheduler.planner import _state as state_words
from specsched_scheduler.planner._applied import (
    as_probe,
    calibrated,
    draft_tokens_of,
    follow_load,
    make_fair,
    probed_budget,
    use_all,
)
from specsched_scheduler.planner._clock import (
    drain_eventfd,
    monotonic_ns,
    poll_readable,
    ring_eventfd,
)
from specsched_scheduler.planner._history import append_confidences
from specsched_scheduler.planner._latency import bucket_of
from specsched_scheduler.planner._learned import (
    calibration_of,
    cost_of,
    take_probe,
    take_publication,
)
from specsched_scheduler.planner._state import add_to
from specsched_scheduler.planner._tape import append_step

__all__ = ["INTERRUPTED", "NEEDS_PYTHON", "publish_plan", "run_loop"]

INTERRUPTED = 0
"""Python has something new to say."""
NEEDS_PYTHON = 1
"""A step was read whose policy only Python can run; `publish_plan` answers it."""

_PYTHON = int(PolicyCode.PYTHON)
_REPAIRED = int(DecisionFlags.REPAIRED)
_PRIOR = int(DecisionFlags.PRIOR)
_MAX_TRIES = 64


@njit(cache=True, nogil=True)
def run_loop(memory: Any, settings: Any, learned: Any, state: Any) -> int:
    """Decide every plan request until the generation changes, or until Python is needed.

    memory: SharedWords. settings: Settings. learned: LearnedBuffers. state: LoopState.
    """
    while True:
        publication = _wait(memory, settings, state)
        if publication == 0:
            return INTERRUPTED
        if _read_step(memory, publication, state) != OK:
            continue
        if follow_load(state):  # there is more to be learned now than later
            ring_eventfd(settings.learner_fd, state.scratch)
        draft_tokens = draft_tokens_of(settings.rule, memory.layout, state)
        state.entry[lane.NEXT_DRAFT_TOKENS] = draft_tokens
        if settings.rule.fairness > 0.0:
            make_fair(state, settings.rule.fairness)
        buffer = take_publication(learned.words)
        confidence = calibrated(calibration_of(learned, buffer), state)
        if settings.rule.code == _PYTHON:
            state.calibrated[:] = confidence
            return NEEDS_PYTHON
        request = state.request
        probed = probed_budget(learned.words, settings.rule.code, request)
        step = StepInput(
            confidence,
            request.num_draft_tokens,
            state.gathered.num_valid,
            request.samples,
            request.weight,
            request.context_tokens,
            request.fixed[NUM_REQUESTS],
            request.fixed[NUM_OTHER_TOKENS],
            request.fixed[NUM_PREFILL_TOKENS],
            request.fixed[MAX_BUDGET] if probed < 0 else probed,
            draft_tokens,
        )
        rule = settings.rule if probed < 0 else use_all(settings.rule, memory.layout)
        plan = decide_step(rule, step, cost_of(learned, buffer), state.prior, state.workspace)
        if probed >= 0:
            plan = as_probe(plan)
            take_probe(learned.words)
        publish_plan(memory, settings, state, plan)


# ===================== Waiting =====================


@njit(cache=True, nogil=True)
def _wait(memory: Any, settings: Any, state: Any) -> Any:
    """The next publication not seen yet, or 0 once the generation has changed.

    Spins briefly, then sleeps on the doorbell. The executor stores the publication before it rings,
    and the doorbell keeps its count, so looking again after draining it loses none.
    """
    seen = state.counters[state_words.SEEN_PUBLICATION]
    spin_until = monotonic_ns(state.scratch) + settings.spin_ns
    while True:
        if load_acquire(state.generation, 0) != settings.generation:
            return 0
        latest = latest_publication(memory.executor, memory.layout)
        now = monotonic_ns(state.scratch)
        if latest > 0 and latest != seen:
            add_to(state.counters, state_words.NUM_MISSED, max(latest - seen - 1, 0))
            store_relaxed(state.counters, state_words.SEEN_PUBLICATION, latest)
            store_relaxed(state.counters, state_words.SEEN_NS, now)
            return latest
        if now >= spin_until:
            lane.beat(memory.lane, now)
            fds = (settings.doorbell_fd, settings.wake_fd)
            poll_readable(fds[0], fds[1], settings.poll_ms, state.scratch)
            drain_eventfd(fds[0], state.scratch)
            drain_eventfd(fds[1], state.scratch)


# ===================== Reading =====================


@njit(cache=True, nogil=True)
def _read_step(memory: Any, publication: int, state: Any) -> int:
    """Copy the plan request and its confidences into `state`; OK if they can be decided."""
    for _ in range(_MAX_TRIES):
        status: int = read_request(memory.executor, memory.layout, publication, 1, state.request)
        if status == OK:
            status = _gather(memory, state)
        if status == EMPTY:  # overwritten by a newer one, which is decided instead
            add_to(state.counters, state_words.NUM_MISSED, 1)
        elif status == INVALID:
            add_to(state.counters, state_words.NUM_INVALID, 1)
        if status != TORN:
            return status
        add_to(state.counters, state_words.NUM_TORN, 1)
    add_to(state.counters, state_words.NUM_MISSED, 1)
    return TORN


@njit(cache=True, nogil=True)
def _gather(memory: Any, state: Any) -> int:
    """Copy the confidences of the request just read. Without any, every row uses the prior."""
    fixed = state.request.fixed
    status = EMPTY
    if fixed[CONFIDENCE_INDEX] > 0:
        status = read_confidences(memory.executor, memory.layout, state.request, 1, state.gathered)
    if status == EMPTY:
        state.gathered.num_valid[: fixed[NUM_REQUESTS]] = 0
        add_to(state.counters, state_words.NUM_MISSING_CONFIDENCES, 1)
    return TORN if status == TORN else OK


# ===================== Writing =====================


@njit(cache=True, nogil=True)
def publish_plan(memory: Any, settings: Any, state: Any, plan: Any) -> None:
    """Write `plan`, a StepPlan for the request in `state`, to the lane and the private ring.

    The length of the next drafts stands in state.entry already.
    """
    fixed, entry, counters = state.request.fixed, state.entry, state.counters
    num_repaired, flags = _count_repaired(state, plan.num_repaired, plan.flags)
    flags |= row_flags(settings.rule)
    max_verify_len = plan.max_verify_len
    if max_verify_len != NO_BUDGET_CAP:
        max_verify_len = min(max_verify_len, memory.layout.max_draft_tokens)
    now = monotonic_ns(state.scratch)
    entry[lane.STEP_ID] = fixed[STEP_ID]
    entry[lane.SOURCE_STEP_ID] = fixed[SOURCE_STEP_ID]
    entry[lane.EPOCH] = settings.epoch
    entry[lane.BUDGET] = plan.budget
    entry[lane.MAX_VERIFY_LEN] = max_verify_len
    entry[lane.EXPECTED_TOKENS_BITS] = float64_to_bits(plan.expected_tokens)
    entry[lane.EXPECTED_MS_BITS] = float64_to_bits(plan.expected_ms)
    entry[lane.POLICY_ID] = settings.policy_id
    entry[lane.MODEL_STATE] = plan.model_state
    entry[lane.FLAGS] = flags
    entry[lane.NUM_REPAIRED] = num_repaired
    entry[lane.DECIDED_NS] = now
    entry[lane.FAIRNESS_BITS] = float64_to_bits(settings.rule.fairness)
    index = counters[state_words.NUM_DECISIONS]
    lane.write_decision(memory.lane, index, entry)

    plan_ns = now - counters[state_words.SEEN_NS]
    entry[ring.INDEX] = index + 1
    entry[ring.NUM_REQUESTS] = fixed[NUM_REQUESTS]
    entry[ring.NUM_DRAFTS] = plan.num_drafts
    entry[ring.PLAN_NS] = plan_ns
    ring.append(state.ring, entry)
    add_to(state.histogram, bucket_of(plan_ns), 1)
    add_to(counters, state_words.NUM_REPAIRED, num_repaired)
    store_relaxed(counters, state_words.LAST_STEP_ID, fixed[STEP_ID])
    add_to(counters, state_words.NUM_DECISIONS, 1)
    if settings.decided_fd >= 0:
        ring_eventfd(settings.decided_fd, state.scratch)
    lane.beat(memory.lane, now)
    append_confidences(state.history, state.request, state.gathered)
    is_raw = load_relaxed(counters, state_words.IS_RAW) != 0
    confidence = state.gathered.confidence if is_raw else state.calibrated
    append_step(state.tape, state.request, state.gathered.num_valid, confidence, entry)
    if (index + 1) % settings.steps_per_lesson == 0:
        ring_eventfd(settings.learner_fd, state.scratch)


@njit(cache=True, nogil=True)
def _count_repaired(state: Any, num_replaced: int, flags: int) -> Any:
    """(values that were impossible, flags): a position nobody published is prior, not repair."""
    request = state.request
    num_unpublished = 0
    for row in range(request.fixed[NUM_REQUESTS]):
        num_valid = state.gathered.num_valid[row]
        if request.samples[row] and num_valid > 0:
            num_unpublished += max(np.int64(request.num_draft_tokens[row]) - num_valid, 0)
    num_repaired = max(num_replaced - num_unpublished, 0)
    if num_unpublished > 0:
        flags |= _PRIOR
    if num_repaired == 0:
        flags &= ~_REPAIRED
    return num_repaired, flags
