"""Text to token ids and back: encoding, chat templates, streaming detokenisation."""

from specsched_executor.tokenizer._errors import TokenizerError
from specsched_executor.tokenizer.chat_template import ChatMessage, ChatTemplate
from specsched_executor.tokenizer.detokenizer import IncrementalDetokenizer
from specsched_executor.tokenizer.from_gguf import tokenizer_from_gguf
from specsched_executor.tokenizer.from_huggingface import tokenizer_from_huggingface
from specsched_executor.tokenizer.of_bytes import BYTE_EOS_TOKEN_ID, byte_tokenizer
from specsched_executor.tokenizer.tokenizer import Tokenizer

__all__ = [
    "BYTE_EOS_TOKEN_ID",
    "ChatMessage",
    "ChatTemplate",
    "IncrementalDetokenizer",
    "Tokenizer",
    "TokenizerError",
    "byte_tokenizer",
    "tokenizer_from_gguf",
    "tokenizer_from_huggingface",
]
