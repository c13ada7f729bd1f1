"""The tokenizer of the installed GGUF, and its export."""

from __future__ import annotations

import pytest
import transformers
from specsched_executor.model import default_model_path
from specsched_executor.model.gguf.container import GgufFile
from specsched_executor.tokenizer import Tokenizer, TokenizerError, tokenizer_from_gguf

TEXTS = [
    "Hello, world!",
    "  def f(x):\n\treturn x ** 2  # square\n\n\n",
    "In 2024, 12345 people paid $6.78.",
    "naïve café — 東京 🙂🏳️‍🌈 \u200b",
    "I'm sure they've said it's fine; DON'T.",
    "",
]


@pytest.fixture(scope="module")
def metadata() -> dict:
    file = GgufFile(default_model_path())
    file.close()
    return file.metadata


@pytest.fixture(scope="module")
def tokenizer(metadata) -> Tokenizer:
    return tokenizer_from_gguf(metadata, default_model_path())


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_tokens_of_their_own(tokenizer):
    ids = tokenizer.encode("x = 20245")
    assert [tokenizer.decode([token]) for token in ids][-5:] == list("20245")


def test_special_tokens(tokenizer):
    assert tokenizer.encode("<|im_start|>user<|im_end|>")[0] == 1
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.bos_token_id == 1
    assert {0, 1, 2} <= tokenizer.special_token_ids
    assert tokenizer.decode([1, *tokenizer.encode("hi"), 2]) == "hi"
    assert tokenizer.decode([2], skip_special_tokens=False) == "<|im_end|>"
    assert tokenizer.vocab_size == 49_152


def test_conversation(tokenizer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.decode(tokenizer.encode_chat(messages), skip_special_tokens=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    open_end = tokenizer.encode_chat(messages, add_generation_prompt=False)
    assert not tokenizer.decode(open_end).endswith("assistant\n")


def test_exported_files_are_read_by_transformers(tokenizer, tmp_path):
    for name, content in tokenizer.files().items():
        (tmp_path / name).write_bytes(content)
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert exported.encode(text) == tokenizer.encode(text)
    messages = [{"role": "user", "content": "12 🙂"}]
    templated = exported.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert exported.encode(templated) == tokenizer.encode_chat(messages)
    assert exported.eos_token == "<|im_end|>"
    assert exported.model_max_length == 8192


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.ggml.model", "bert", "GGUF tokenizer 'bert'; read: 'gpt2'"),
        ("tokenizer.ggml.pre", "mystery", "'mystery'; read: default, gpt-2, smollm"),
        ("tokenizer.ggml.merges", None, "metadata tokenizer.ggml.merges is missing"),
    ],
)
def test_what_is_refused(metadata, key, value, message):
    changed = {**metadata, key: value}
    if value is None:
        del changed[key]
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_gguf(changed, default_model_path())


def test_leading_token_where_the_file_asks_for_it(metadata):
    tokenizer = tokenizer_from_gguf(
        {**metadata, "tokenizer.ggml.add_bos_token": True}, default_model_path()
    )
    plain = tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.encode("hi") == [1, *plain]


def test_larger_number_pieces_of_other_pre_tokenizers(metadata):
    """Llama 3 splits numbers by threes, Qwen by digits."""

    def pieces(pre: str) -> list[str]:
        backend = tokenizer_from_gguf(
            {**metadata, "tokenizer.ggml.pre": pre}, default_model_path()
        ).backend
        return [text for text, _ in backend.pre_tokenizer.pre_tokenize_str("a12345 it's\n\nx")]

    assert pieces("llama-bpe") == ["a", "123", "45", "Ġit", "'s", "ĊĊ", "x"]
    assert pieces("qwen2") == ["a", "1", "2", "3", "4", "5", "Ġit", "'s", "ĊĊ", "x"]
