"""The executor's vocabulary: what its modules pass to each other. Imports nothing of ours.

Nor does it load torch, which a front end in a process of its own has no use for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

PAD_SLOT = -1
"""KV slot of a padded row: nothing is written, nothing is read."""


# ===================== The target model =====================


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape facts of a decoder-only target.

    num_kv_heads, head_dim: what the cache holds a token; latent attention has one head, of the
    entry's width, that all query heads share. kv_block_size: tokens of a block of the cache, where
    its kernels take no other; None: any.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_context_tokens: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    kv_block_size: int | None = None


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """One ragged step, rows flattened request after request.

    token_ids, positions, slot_mapping: int64 [n]; slot_mapping is block * block_size + offset or
    PAD_SLOT. query_start_loc: int64 [R+1]. context_lens: int64 [R], tokens in the cache after this
    step's rows are written. block_tables: int32 [R, max_blocks]. logit_rows: int64 [m], the rows
    whose logits are wanted. feature_layers: layers whose hidden states (the output of the layer,
    before the final norm) are returned for the drafter. max_query_len, max_context_tokens: upper
    bounds over the batch, for launches on a device whose sizes the host does not know; None: as
    much as the shapes allow. There, rows past query_start_loc[R] are padding with slot PAD_SLOT.
    uniform_query_len: rows that every request sends, where the host knows that they all send as
    many; of the last requests they may be padding. has_prompts: whether rows may be those of
    prompts, so that there may be any number of them.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start_loc: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    logit_rows: torch.Tensor
    feature_layers: tuple[int, ...] = ()
    max_query_len: int | None = None
    max_context_tokens: int | None = None
    uniform_query_len: int | None = None
    has_prompts: bool = False


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """logits: float32 [m, vocab]; features: layer -> [n, hidden_size]."""

    logits: torch.Tensor
    features: Mapping[int, torch.Tensor] = field(default_factory=dict)


class KvCache(Protocol):
    """Paged keys and values of every layer."""

    @property
    def num_blocks(self) -> int:
        """Blocks there are."""

    @property
    def block_size(self) -> int:
        """Tokens of one block."""


class TargetModel(Protocol):
    """A target the engine can run; the tiny table-driven targets of the tests implement it too."""

    @property
    def config(self) -> ModelConfig:
        """Its shape."""

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> KvCache:
        """An empty cache of `num_blocks` blocks of `block_size` tokens."""

    def forward(self, batch: ModelBatch, kv_cache: KvCache) -> TargetOutput:
        """Run the rows of `batch`, writing their keys and values to `kv_cache`."""


# ===================== Drafting =====================


@dataclass(frozen=True, slots=True)
class DraftInput:
    """What a drafter may look at, per drafting request (first dimension R).

    slot_ids: int64 [R]. histories: committed token ids of each request, int32, prompt included,
    anchor last; valid during the call. features: layer -> [rows, hidden] of the step that just ran,
    with feature_start_loc int64 [R+1] giving each request's rows; only rows of committed tokens are
    listed. temperatures: float32 [R], 0 where the likeliest tokens are wanted.
    """

    step_id: int
    slot_ids: torch.Tensor
    generations: torch.Tensor
    histories: tuple[npt.NDArray[np.int32], ...]
    max_draft_tokens: torch.Tensor
    temperatures: torch.Tensor
    seeds: torch.Tensor
    features: Mapping[int, torch.Tensor] = field(default_factory=dict)
    feature_start_loc: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class DraftOutput:
    """Drafts of R requests.

    token_ids: int64 [R, k], garbage past num_draft_tokens int64 [R]. confidence: float32 [R, k],
    P(draft j accepted | 0..j-1 accepted); NaN where the drafter has none. Row r, position j may
    depend on the draft distribution at j and on tokens before j, never on token j (lossless
    invariant). distribution: float32 [R, n, vocab] the drafts were sampled from, n at least the
    longest of num_draft_tokens, or None for a deterministic drafter (a point mass).
    """

    token_ids: torch.Tensor
    num_draft_tokens: torch.Tensor
    confidence: torch.Tensor
    distribution: torch.Tensor | None = None


class Drafter(Protocol):
    """The seam a drafter plugs into."""

    @property
    def name(self) -> str:
        """Its name in options and statuses."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Target layers whose hidden states it needs; () for none."""

    def draft(self, inputs: DraftInput) -> DraftOutput:
        """Propose the next tokens of every request in `inputs`."""

    def observe(
        self,
        slot_ids: torch.Tensor,
        generations: torch.Tensor,
        num_verified: torch.Tensor,
        num_accepted: torch.Tensor,
    ) -> None:
        """Learn from outcomes: int64 [R] each, of the drafts last made for these rows."""

    def release(self, slot_id: int) -> None:
        """Forget the request in this row."""


# ===================== Requests =====================


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request samples and what it is told. Validated by `validate_sampling`.

    Before a token is drawn, in this order: logit_bias (token id, addend) is added; a logit of a
    token in prompt or output is divided by repetition_penalty (multiplied, if negative); of tokens
    in the output, frequency_penalty * count and presence_penalty are subtracted; temperature
    divides (0: greedy, what follows does not matter); tokens below min_p * the largest probability,
    then outside top_k, then outside top_p are left out. n: outputs of the request. logprobs,
    prompt_logprobs: how many of the likeliest tokens to tell at each position of output or prompt,
    beside the token that is there; None tells nothing. seed: of all draws, None for any. Of equal
    seeds the output is the same with any drafts where repeatable is on, which costs a stochastic
    drafter acceptance; without, equal only as long as the same drafts are verified.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    repeatable: bool = True
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False

    @property
    def keeps_own_sample(self) -> bool:
        """Whether drafts are accepted only where they equal what would be drawn without them."""
        return self.seed is not None and self.repeatable and self.temperature > 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as it is made, which takes a third of the time of a frozen one's own way."""
        return SamplingParams, _sampling_values(self)


_sampling_values = attrgetter(*SamplingParams.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to complete. `weight` multiplies all that it contributes to a plan."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    weight: float = 1.0

    def __reduce__(self) -> tuple[Any, ...]:
        """See SamplingParams."""
        values = (self.request_id, self.prompt_token_ids, self.sampling, self.weight)
        return GenerationRequest, values


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the target's own probabilities at one position.

    They are those of the softmax of the logits as the model gave them, before any bias, penalty,
    temperature or cut. logprob: of the token that is there. top_token_ids, top_logprobs: the
    likeliest tokens, best first, as many as were asked for.
    """

    logprob: float
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(slots=True)
class TokenDelta:
    """New tokens of one output of a request, or that output's end. Nobody changes one: it is not
    frozen since that takes five times as long to make, and each request makes one per step.

    index: which of the n outputs. finish_reason: None while running, else "stop", "length", "abort"
    or "error"; from an engine in another process also "refused", "duplicate" and "stopped", for
    what `submit` raises here. num_draft_tokens / num_accepted_tokens: totals of verified and
    accepted drafts so far. logprobs: one for each of token_ids if asked for, else empty.
    prompt_logprobs: with the first tokens, if asked for: one for each token of the prompt, None for
    the first of it.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    error: str | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    index: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()


DeltaSink = Callable[[TokenDelta], None]
"""Called from the engine thread; must not block."""


class RequestError(ValueError):
    """A request that cannot be served as asked; the message names value and what is accepted."""


class DuplicateIdError(RequestError):
    """A request with the id of one that still runs."""
