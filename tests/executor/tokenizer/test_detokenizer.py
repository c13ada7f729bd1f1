"""Streaming: pieces join to the whole text, and none holds half a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specsched_executor.model import default_model_path
from specsched_executor.model.gguf.container import GgufFile
from specsched_executor.tokenizer import IncrementalDetokenizer, Tokenizer, tokenizer_from_gguf
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def _load() -> Tokenizer:
    file = GgufFile(default_model_path())
    file.close()
    return tokenizer_from_gguf(file.metadata, default_model_path())


TOKENIZER = _load()


@given(st.text(max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_pieces_join_to_the_text(text, sizes):
    ids = TOKENIZER.encode(text)
    expected = TOKENIZER.decode(ids)  # the vocabulary lacks a few bytes, such as 0xF1
    stream, pieces = TOKENIZER.detokenizer(TOKENIZER.encode("a prompt")), []
    while ids:
        count = sizes[len(pieces) % len(sizes)]
        pieces.append(stream.push(ids[:count]))
        ids = ids[count:]
    pieces.append(stream.flush())
    assert "".join(pieces) == expected
    if _REPLACEMENT not in expected:
        assert not any(_REPLACEMENT in piece for piece in pieces)


@given(st.lists(st.integers(17, 49_151), max_size=30))
def test_any_tokens_join_to_their_decoding(ids):
    stream = TOKENIZER.detokenizer()
    pieces = [stream.push([token]) for token in ids]
    assert "".join(pieces) + stream.flush() == TOKENIZER.decode(ids)


def test_bytes_of_one_character_come_out_together():
    ids = TOKENIZER.encode("𓂀")
    assert len(ids) == 4
    stream = TOKENIZER.detokenizer()
    assert [stream.push([token]) for token in ids] == ["", "", "", "𓂀"]
    assert stream.flush() == ""


def test_an_unfinished_character_is_flushed_as_replacement():
    stream = TOKENIZER.detokenizer()
    pieces = [stream.push([token]) for token in TOKENIZER.encode("𓂀")[:3]]
    assert pieces == ["", "", ""]
    assert stream.flush() == _REPLACEMENT
    assert stream.flush() == ""


def test_special_tokens_are_skipped_or_kept():
    ids = [*TOKENIZER.encode("hi"), 2]
    assert TOKENIZER.detokenizer().push(ids) == "hi"
    assert TOKENIZER.detokenizer(skip_special_tokens=False).push(ids) == "hi<|im_end|>"


@pytest.mark.parametrize("prompt", [[], [0], [0, 1]])
def test_decoders_that_strip_the_first_space(prompt):
    """Metaspace drops the space before the first word of what it is given, not of each piece."""
    backend = Backend(models.WordLevel({"▁a": 0, "▁b": 1, "c": 2}, unk_token="c"))
    backend.decoder = decoders.Metaspace()
    stream = IncrementalDetokenizer(backend, prompt)
    text = "".join(stream.push([token]) for token in (1, 2, 0, 0))
    assert text == (" bc a a" if prompt else "bc a a")
