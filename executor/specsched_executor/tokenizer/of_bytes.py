"""A tokenizer for models that bring none: one token for each byte, and one that ends an answer."""

from __future__ import annotations

from typing import Final

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from specsched_executor.tokenizer.chat_template import ChatTemplate
from specsched_executor.tokenizer.tokenizer import Tokenizer

__all__ = ["BYTE_EOS_TOKEN_ID", "byte_tokenizer"]

BYTE_EOS_TOKEN_ID: Final = 256
_EOS: Final = "<end>"
_TEMPLATE: Final = "{% for message in messages %}{{ message.content }}{% endfor %}"


def byte_tokenizer() -> Tokenizer:
    """Ids 0 to 255 are bytes, 256 ends an answer; ids beyond decode to nothing."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(_EOS, special=True)])
    special = {"eos_token": _EOS}
    return Tokenizer(
        backend=backend,
        special_tokens=special,
        eos_token_ids=(BYTE_EOS_TOKEN_ID,),
        chat_template=ChatTemplate(_TEMPLATE, special),
    )
