"""The tokenizer a model is served with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tokenizers

from specsched_executor.tokenizer._errors import TokenizerError
from specsched_executor.tokenizer.chat_template import ChatMessage, ChatTemplate
from specsched_executor.tokenizer.detokenizer import IncrementalDetokenizer


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Encodes prompts and conversations, decodes outputs.

    special_tokens: role -> text, e.g. {"eos_token": "<|im_end|>"}. eos_token_ids: ids that end an
    answer. chat_template: None where the checkpoint brings none.
    """

    backend: tokenizers.Tokenizer
    special_tokens: Mapping[str, str]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None = None
    chat_template: ChatTemplate | None = None
    model_max_tokens: int | None = None
    special_token_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        added = self.backend.get_added_tokens_decoder()
        special = frozenset(token_id for token_id, token in added.items() if token.special)
        object.__setattr__(self, "special_token_ids", special)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens written in it are recognised."""
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Token ids of a conversation; the template writes all special tokens itself.

        Raises TokenizerError when there is no template or it refuses the messages.
        """
        if self.chat_template is None:
            raise TokenizerError("this model has no chat template; send a plain prompt")
        text = self.chat_template.render(
            messages, add_generation_prompt=add_generation_prompt, **variables
        )
        return self.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def detokenizer(
        self, prompt_token_ids: Iterable[int] = (), *, skip_special_tokens: bool = True
    ) -> IncrementalDetokenizer:
        """A decoder for one stream of output tokens that follows this prompt."""
        return IncrementalDetokenizer(
            self.backend, prompt_token_ids, skip_special_tokens=skip_special_tokens
        )

    def files(self) -> dict[str, bytes]:
        """The tokenizer as Hugging Face files, name -> content; AutoTokenizer reads the folder."""
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **self.special_tokens,
        }
        if self.model_max_tokens is not None:
            config["model_max_length"] = self.model_max_tokens
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template.source
        return {
            "tokenizer.json": self.backend.to_str(pretty=False).encode(),
            "tokenizer_config.json": _json_bytes(config),
            "special_tokens_map.json": _json_bytes(dict(self.special_tokens)),
        }


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=2).encode()
