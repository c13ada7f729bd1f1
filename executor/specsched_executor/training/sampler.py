"""Text of the target's own, many sequences at a time.

Every slot runs one sequence, a token a step: tokens of the prompt are fed like sampled ones, so one
captured step does everything. A sequence that begins with an open user turn gets the rest of the
template where the target ends that turn, and goes on as an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specsched_executor.training.corpus import Corpus
from specsched_executor.training.options import GenerationOptions
from specsched_executor.training.prompts import OpenTurn
from specsched_executor.training.target import TrainingTarget

__all__ = ["PromptBank", "Sampler"]

_USER_TEMPERATURE = 1.0


@dataclass(frozen=True, slots=True)
class PromptBank:
    """Encoded prompts with the chance of each to be drawn; the open turn is not among them."""

    token_ids: Sequence[Sequence[int]]
    weights: Sequence[float]


class _Slots:
    """What one step reads and writes; S slots of T tokens."""

    def __init__(self, num_slots: int, max_tokens: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(num_slots, *shape, dtype=dtype, device=device)

        self.tokens = zeros(max_tokens)
        self.position = zeros()
        self.num_given = zeros()
        self.answer_start = zeros()
        self.temperature = zeros(dtype=torch.float32)
        self.in_user_turn = zeros(dtype=torch.bool)
        self.is_done = zeros(dtype=torch.bool)
        self.index = torch.arange(num_slots, device=device)


class Sampler:
    """Fills a corpus. Draws from torch's global generator of the device: seed it before."""

    def __init__(
        self,
        target: TrainingTarget,
        options: GenerationOptions,
        bank: PromptBank,
        turn: OpenTurn | None,
        end_ids: Sequence[int],
    ) -> None:
        """`turn`: None where only given prompts are used. Raises ValueError without any prompt."""
        self._target, self._options, self._turn = target, options, turn
        device = target.device
        longest = options.max_tokens - options.max_answer_tokens // 2
        self._starts = [list(ids) for ids in bank.token_ids if len(ids) <= longest]
        pairs = zip(bank.token_ids, bank.weights, strict=True)
        weights = [weight for ids, weight in pairs if len(ids) <= longest]
        if turn is not None:
            share = options.prompted_share if weights else 0.0
            weights = [w * share / sum(weights) for w in weights]
            weights.append(1.0 - share)
            self._starts.append(list(turn.prefix))
        if not weights or sum(weights) <= 0:
            raise ValueError(f"no prompt of at most {longest} tokens to generate from")
        self._weights = torch.tensor(weights, device=device)
        self._padded = torch.zeros(len(weights), options.max_tokens, dtype=torch.int64)
        for row, ids in zip(self._padded, self._starts, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        self._padded = self._padded.to(device)
        self._lengths = torch.tensor([len(ids) for ids in self._starts], device=device)
        values, shares = zip(*options.temperatures, strict=True)
        self._temperatures = torch.tensor(values, device=device)
        self._temperature_shares = torch.tensor(shares, device=device)
        self._end_ids = torch.tensor(list(end_ids), device=device)
        self._suffix = torch.tensor(turn.suffix if turn else (0,), device=device)
        self._slots = _Slots(options.num_slots, options.max_tokens, device)
        self._cache = target.slot_cache(options.num_slots, options.max_tokens)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._refill(self._slots.index)

    @torch.no_grad()
    def fill(self, corpus: Corpus, num_tokens: int, go_on: Callable[[], bool]) -> None:
        """Run until `corpus` has `num_tokens`, is full or `go_on`, asked now and then, says no."""
        if self._target.device.type == "cuda" and self._graph is None:
            self._capture()
        while corpus.num_tokens < num_tokens and not corpus.is_full and go_on():
            for _ in range(self._options.steps_between_refills):
                if self._graph is None:
                    self._step()
                else:
                    self._graph.replay()
            self._collect(corpus)

    def _capture(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._step()

    def _step(self) -> None:
        """Feed one token of every slot and decide the next; those that are done stand still."""
        s, options = self._slots, self._options
        token_ids = s.tokens.gather(1, s.position[:, None])[:, 0]
        logits = self._target.step(token_ids, s.position, self._cache).float()
        sampled = self._draw(logits)
        following = (s.position + 1).clamp(max=options.max_tokens - 1)
        kept = s.tokens.gather(1, following[:, None])[:, 0]
        is_given = (following < s.num_given) | s.is_done
        token = torch.where(is_given, kept, sampled)
        s.tokens.scatter_(1, following[:, None], token[:, None])
        is_new = ~is_given
        ends_turn = is_new & s.in_user_turn & (token == self._suffix[0])
        self._close_turn(ends_turn, following)
        in_answer = is_new & ~s.in_user_turn & ~ends_turn
        num_written = following - s.answer_start
        is_end = (token[:, None] == self._end_ids).any(dim=1)
        over = in_answer & (is_end | (num_written + 1 >= options.max_answer_tokens))
        rambles = s.in_user_turn & (following >= self._turn_limit())
        over |= following >= options.max_tokens - 1
        s.position.copy_(torch.where(s.is_done, s.position, following))
        s.is_done |= over | rambles

    def _turn_limit(self) -> int:
        return (len(self._turn.prefix) if self._turn else 0) + self._options.max_user_tokens

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        """A sample at each slot's temperature: the Gumbel maximum, without noise where it is 0."""
        s = self._slots
        temperature = torch.where(s.in_user_turn, _USER_TEMPERATURE, s.temperature)
        noise = torch.empty_like(logits).exponential_().clamp_(min=1e-30).log_().neg_()
        return (logits + noise * temperature[:, None]).argmax(dim=-1)

    def _close_turn(self, ends_turn: torch.Tensor, following: torch.Tensor) -> None:
        s = self._slots
        num_suffix = len(self._suffix)
        for offset in range(1, num_suffix):
            at = (following + offset).clamp(max=self._options.max_tokens - 1)[:, None]
            old = s.tokens.gather(1, at)
            s.tokens.scatter_(1, at, torch.where(ends_turn[:, None], self._suffix[offset], old))
        start = following + num_suffix
        s.num_given.copy_(torch.where(ends_turn, start, s.num_given))
        s.answer_start.copy_(torch.where(ends_turn, start, s.answer_start))
        s.in_user_turn &= ~ends_turn

    def _collect(self, corpus: Corpus) -> None:
        s = self._slots
        done = s.is_done.nonzero()[:, 0]
        if done.numel() == 0:
            return
        answered = done[~s.in_user_turn[done] & (s.position[done] > s.answer_start[done])]
        corpus.add(
            s.tokens[answered],
            s.position[answered] + 1,
            s.answer_start[answered],
            s.temperature[answered],
        )
        self._refill(done)

    def _refill(self, slots: torch.Tensor) -> None:
        s, num = self._slots, len(slots)
        chosen = torch.multinomial(self._weights, num, replacement=True)
        s.tokens[slots] = self._padded[chosen]
        s.position[slots] = 0
        s.num_given[slots] = self._lengths[chosen]
        is_open = torch.zeros_like(chosen, dtype=torch.bool)
        if self._turn is not None:
            is_open = chosen == len(self._starts) - 1
        s.in_user_turn[slots] = is_open
        s.answer_start[slots] = torch.where(is_open, 0, self._lengths[chosen])
        kind = torch.multinomial(self._temperature_shares, num, replacement=True)
        s.temperature[slots] = self._temperatures[kind]
        s.is_done[slots] = False
