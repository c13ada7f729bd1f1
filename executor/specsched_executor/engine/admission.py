"""The door: what may become a request of the engine."""

from __future__ import annotations

import random
import secrets

import numpy as np
import numpy.typing as npt

from specsched_executor.core import (
    DeltaSink,
    GenerationRequest,
    ModelConfig,
    RequestError,
    SamplingParams,
)
from specsched_executor.engine.active_request import ActiveRequest
from specsched_executor.engine.blocks import num_blocks_for
from specsched_executor.engine.config import EngineConfig
from specsched_executor.engine.stopping import Detokenizer, StopRules
from specsched_executor.sampling import (
    SEED_BITS,
    LogitRules,
    derived_seed,
    validate_sampling,
)

__all__ = ["Admission"]

_SEED_MASK = (1 << SEED_BITS) - 1
_WEIGHTS = np.finfo(np.float32)


class Admission:
    """Checks requests and gives them their engine state. Any thread."""

    def __init__(
        self, model: ModelConfig, config: EngineConfig, detokenizer: Detokenizer | None
    ) -> None:
        self._model = model
        self._config = config
        self._detokenizer = detokenizer
        # Asks the kernel once, not for each request: the interpreter would be given up meanwhile.
        self._seeds = random.Random(secrets.randbits(256))  # noqa: S311 - draws keep no secret
        self.max_context_tokens = config.context_tokens(model.max_context_tokens)

    def accept_all(self, request: GenerationRequest, sink: DeltaSink) -> list[ActiveRequest]:
        """The states of the request's n outputs, each sampled by a seed of its own.

        Raises RequestError, naming the value and what is accepted.
        """
        first = self.accept(request, sink)
        others = range(1, request.sampling.n)
        return [first, *(self._another(first, index) for index in others)]

    def accept(self, request: GenerationRequest, sink: DeltaSink) -> ActiveRequest:
        """The state of the request's first output. Raises RequestError like `accept_all`."""
        self._check_prompt(request)
        validate_sampling(request.sampling, self._model.vocab_size)
        if request.sampling.stop and self._detokenizer is None:
            raise RequestError("stop strings were given to an engine without a tokenizer")
        if not _WEIGHTS.tiny <= request.weight <= _WEIGHTS.max:
            raise RequestError(
                f"weight is {request.weight}; accepted: a number above 0, of float32"
            )
        self._check_choice(request.sampling)
        max_total_tokens = self._max_total_tokens(request)
        self._check_room(max_total_tokens)
        seed = request.sampling.seed
        return self._state(
            request,
            sink,
            np.array(request.prompt_token_ids, dtype=np.int32),
            seed=self._seeds.getrandbits(SEED_BITS) if seed is None else seed & _SEED_MASK,
            max_total_tokens=max_total_tokens,
        )

    def _another(self, first: ActiveRequest, index: int) -> ActiveRequest:
        return self._state(
            first.request,
            first.sink,
            first.tokens,
            seed=derived_seed(first.seed, index),
            max_total_tokens=first.max_total_tokens,
            index=index,
        )

    def _state(
        self,
        request: GenerationRequest,
        sink: DeltaSink,
        tokens: npt.NDArray[np.int32],
        *,
        seed: int,
        max_total_tokens: int,
        index: int = 0,
    ) -> ActiveRequest:
        num_prompt_tokens = len(request.prompt_token_ids)
        return ActiveRequest(
            request=request,
            sink=sink,
            seed=seed,
            max_total_tokens=max_total_tokens,
            stop_rules=StopRules.of(
                request.sampling,
                self._model.eos_token_ids,
                max_total_tokens - num_prompt_tokens,
                self._detokenizer,
            ),
            tokens=tokens,
            index=index,
            logit_rules=LogitRules.of(request.sampling, num_prompt_tokens),
        )

    def _check_choice(self, params: SamplingParams) -> None:
        if params.min_tokens == 0:
            return
        # Impossible until there are min_tokens, see `suppress_early_stops`.
        stops = set(params.stop_token_ids)
        if not params.ignore_eos:
            stops |= set(self._model.eos_token_ids)
        vocab_size = self._model.vocab_size
        if len(stops) >= vocab_size:
            raise RequestError(
                f"min_tokens is {params.min_tokens} and all {vocab_size} tokens end the output;"
                f" accepted: min_tokens 0, or at most {vocab_size - 1} stop_token_ids and end ids"
            )

    def _check_prompt(self, request: GenerationRequest) -> None:
        prompt, longest = request.prompt_token_ids, self.max_context_tokens - 1
        if not prompt:
            raise RequestError("the prompt is empty; accepted: 1 token or more")
        if len(prompt) > longest:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens; accepted: at most {longest}, which leaves"
                f" one for the output in a context of {self.max_context_tokens}"
            )
        vocab_size = self._model.vocab_size
        lowest, highest = min(prompt), max(prompt)
        if lowest < 0 or highest >= vocab_size:
            bad = lowest if lowest < 0 else highest
            raise RequestError(f"the prompt holds token id {bad}; accepted: 0 to {vocab_size - 1}")

    def _max_total_tokens(self, request: GenerationRequest) -> int:
        max_tokens = request.sampling.max_tokens
        if max_tokens is None:
            # As much as there is room for; a prompt without room is refused below.
            room = self._config.num_kv_blocks * self._config.block_size + 1
            return min(self.max_context_tokens, max(room, len(request.prompt_token_ids) + 1))
        return min(self.max_context_tokens, len(request.prompt_token_ids) + max_tokens)

    def _check_room(self, max_total_tokens: int) -> None:
        num_blocks, block_size = self._config.num_kv_blocks, self._config.block_size
        # The last output token is never run, so it needs no room.
        if num_blocks_for(max_total_tokens - 1, block_size) > num_blocks:
            raise RequestError(
                f"prompt and output may reach {max_total_tokens} tokens; accepted: at most"
                f" {num_blocks * block_size + 1}, the size of the KV cache: lower"
                " max_tokens or shorten the prompt"
            )
