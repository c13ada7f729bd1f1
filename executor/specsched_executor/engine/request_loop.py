"""The requests of an engine and what steps have in common, however they overlap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import structlog

from specsched_executor.engine.accounts import StepAccounts
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.batch import StepBatch
from specsched_executor.engine.batch_former import BatchFormer
from specsched_executor.engine.blocks import BlockPool
from specsched_executor.engine.confidence_gate import ConfidenceGate, no_rows
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.counters import EngineStats, StepOutcomes
from specsched_executor.engine.delivery import ABORTED, Delivery
from specsched_executor.engine.drafting import NewDrafts
from specsched_executor.engine.fallback import Allowance
from specsched_executor.engine.new_tokens import NewTokens
from specsched_executor.engine.residency import Residency
from specsched_executor.engine.slot_columns import SlotColumns
from specsched_executor.engine.step_plans import StepPlans
from specsched_executor.engine.target_pass import Integers, PassOutcome
from specsched_executor.progress import Progress

__all__ = ["RequestLoop"]

_log = structlog.get_logger()

_UNUSABLE_LOGITS = "the target's logits for this request are not finite (NaN or infinite)"


class RequestLoop(ABC):
    """Owns the state of the requests and advances it. Belongs to one thread.

    overlaps: a step is formed while the one before is in flight.
    """

    def __init__(
        self,
        *,
        config: EngineConfig,
        gate: ConfidenceGate,
        residency: Residency,
        columns: SlotColumns,
        pool: BlockPool,
        delivery: Delivery,
        overlaps: bool = False,
    ) -> None:
        self._config = config
        self._gate = gate
        self._residency = residency
        self._columns = columns
        self._pool = pool
        self._delivery = delivery
        self._new_tokens = NewTokens(columns)
        self._former = BatchFormer(residency, columns, config.max_num_batched_tokens)
        self._accounts = StepAccounts(config)
        self._counters = self._accounts.counters
        self._plans = StepPlans(
            config=config,
            gate=gate,
            residency=residency,
            columns=columns,
            pool=pool,
            accounts=self._accounts,
            overlaps=overlaps,
        )
        self._step_id = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self._residency.num_running or self._residency.num_waiting)

    def stats(self) -> EngineStats:
        """A snapshot."""
        return self._accounts.stats(
            self._residency, self._pool, self._delivery, self._config.max_num_seqs
        )

    @property
    def outcomes(self) -> StepOutcomes:
        """Distributions over its steps."""
        return self._accounts.outcomes

    def queue(self, request: ActiveRequest) -> None:
        """Take a new request."""
        self._delivery.enrol(request)
        self._residency.queue(request)

    def abort(self, request: ActiveRequest) -> None:
        """End a request early; one that is over already is left alone."""
        if not request.is_over:
            self._drop(request)
            self._delivery.send(request, stop=ABORTED)
            self._delivery.flush()

    def step(self) -> bool:
        """Run one step; False where there was nothing to run.

        Whatever goes wrong fails the requests of this step, or whose turn it was to be admitted,
        and leaves the others and the loop. It is raised where no step can be run any more.
        """
        self._step_id += 1
        structlog.contextvars.bind_contextvars(step_id=self._step_id)
        batch: StepBatch | None = None
        try:
            batch = self._form(self._step_id)
            if batch is None:
                return False
            self._run(batch)
        except Exception as error:  # noqa: BLE001 - the loop outlives whatever fails in a step
            self._counters.num_failed_steps += 1
            concerned = [*self._abandon(), *(batch.requests if batch else ())]
            concerned = concerned or list(self._residency.running)
            concerned = concerned or self._residency.first_waiting(1)
            _log.exception("step failed", request_ids=[r.request_id for r in concerned])
            self._fail(concerned, f"step failed: {type(error).__name__}: {error}")
            self._gate.withhold(no_rows(self._step_id, self._config.max_draft_tokens))
            self._accounts.asked_draft_tokens = 0
        finally:
            self._delivery.flush()
        return True

    def _form(self, step_id: int) -> StepBatch | None:
        """The batch of the step; None where nothing can run."""
        return self._former.form(step_id)

    def _abandon(self) -> Sequence[ActiveRequest]:
        """Give up what is in flight, after a fault; whom that concerns. Raises if all is lost."""
        return ()

    @abstractmethod
    def _run(self, batch: StepBatch) -> None:
        """Run a batch."""

    def _commit(self, batch: StepBatch, outcome: PassOutcome) -> None:
        """Take in what a step sampled: in one go for all requests that just go on."""
        is_live = self._columns.hold(batch.slot_ids, batch.generations)  # others ended meanwhile
        num_new = outcome.num_accepted + 1
        self._note_cached(batch, is_live, num_new)
        fates = self._new_tokens.judge(batch.slot_ids, outcome.token_ids, num_new)
        is_usable = is_live & batch.samples & ~outcome.faulty
        goes_on, ends = is_usable & fates.goes_on, is_usable & fates.ends
        if ends.any():
            self._commit_last(batch, outcome, np.flatnonzero(ends), fates.num_kept)
        for index in np.flatnonzero(is_live & ~goes_on & ~ends).tolist():
            goes_on[index] = self._commit_one(batch, outcome, index)
        rows = np.flatnonzero(goes_on)
        takers = self._columns.taker[batch.slot_ids[rows]]
        if takers.any():  # those of each taker behind each other
            order = np.argsort(takers, kind="stable")
            rows, takers = rows[order], takers[order]
        self._delivery.send_all(self._take_in(batch, outcome, rows, num_new[rows]), takers)

    def _take_in(
        self, batch: StepBatch, outcome: PassOutcome, rows: Integers, num_kept: Integers
    ) -> Progress:
        """Take in the first num_kept [n] new tokens of some rows [n] of the batch."""
        progress = self._new_tokens.take_in(
            batch.slot_ids[rows],
            outcome.token_ids[rows],
            num_kept,
            outcome.verify_lens[rows],
            outcome.num_accepted[rows],
        )
        self._counters.num_output_tokens += len(progress.token_ids)
        return progress

    def _commit_last(
        self, batch: StepBatch, outcome: PassOutcome, rows: Integers, num_kept: Integers
    ) -> None:
        """The same of requests that end, by their length or by a token."""
        progress = self._take_in(batch, outcome, rows, num_kept[rows])
        for index, (_, _, token_ids, *_) in zip(rows.tolist(), progress.rows(), strict=True):
            request = batch.requests[index]
            self._drop(request)
            stop = request.stop_rules.check(token_ids[-1], request.num_output_tokens)
            self._delivery.send(request, token_ids, stop)

    def _commit_one(self, batch: StepBatch, outcome: PassOutcome, index: int) -> bool:
        """The same of one request that needs a closer look; True where it just goes on, too."""
        request = batch.requests[index]
        if outcome.faulty[index]:
            self._fail([request], _UNUSABLE_LOGITS)
            return False
        request.prompt_logprobs += outcome.prompt_logprobs.get(index, ())
        if not batch.samples[index]:
            return False
        num_accepted = int(outcome.num_accepted[index])
        new_tokens = outcome.token_ids[index, : num_accepted + 1].tolist()
        self._columns.note_progress(request)
        num_kept, stop = request.stop_rules.first_stop(new_tokens, request.num_output_tokens)
        if stop is None and request.batched_sink is not None:
            return True
        self._take_in(batch, outcome, np.array([index]), np.array([num_kept]))
        self._columns.note_progress(request)
        if stop is not None:
            self._drop(request)
        logprobs = outcome.logprobs.get(index, ())[:num_kept]
        is_sent = self._delivery.send(request, new_tokens[:num_kept], stop, logprobs=logprobs)
        if not is_sent and stop is None:
            self.abort(request)
        return False

    def _note_cached(
        self, batch: StepBatch, is_live: npt.NDArray[np.bool_], num_new_tokens: Integers
    ) -> None:
        """The rows of the tokens that a step commits, all but the last, are in the cache.

        Called before the new tokens are known to be there. is_live: bool [R], who goes on.
        """
        cached = batch.first_positions + batch.num_base_rows
        cached += np.where(batch.samples, num_new_tokens - 1, 0)
        self._columns.num_cached_tokens[batch.slot_ids[is_live]] = cached[is_live]

    def _fail(self, requests: Iterable[ActiveRequest], error: str) -> None:
        for request in requests:
            if not request.is_over:
                self._drop(request)
                self._counters.num_failed_requests += 1
                self._delivery.send(request, error=error)

    def _drop(self, request: ActiveRequest) -> None:
        self._residency.drop(request)
        request.is_over = True  # not before: one that could not be dropped must still be told

    def _finish_step(
        self, batch: StepBatch, outcome: PassOutcome, drafts: NewDrafts, allowance: Allowance
    ) -> None:
        self._gate.report(self._accounts.finish(batch, outcome, drafts, allowance))
