"""Tokenizers of Hugging Face folders."""

from __future__ import annotations

import json

import pytest
from specsched_executor.tokenizer import TokenizerError, tokenizer_from_huggingface
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend


@pytest.fixture
def folder(tmp_path):
    backend = Backend(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2}, unk_token="a"))
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "model_max_length": 10**30,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_facts(folder):
    tokenizer = tokenizer_from_huggingface(folder, (5,))
    assert tokenizer.bos_token_id == 0
    assert tokenizer.eos_token_ids == (5, 1)
    assert tokenizer.special_token_ids == {0, 1}
    assert tokenizer.model_max_tokens is None
    assert tokenizer.encode_chat([{"role": "user", "content": "a"}]) == [0, 2]


def test_template_file_wins_and_lists_have_a_default(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "rag", "template": "x"},
        {"name": "default", "template": "a"},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    message = [{"role": "user", "content": "a"}]
    assert tokenizer_from_huggingface(folder, ()).encode_chat(message) == [2]
    (folder / "chat_template.jinja").write_text("</s>")
    assert tokenizer_from_huggingface(folder, ()).encode_chat(message) == [1]


def test_without_template(folder):
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(TokenizerError, match="no chat template; send a plain prompt"):
        tokenizer_from_huggingface(folder, ()).encode_chat([{"role": "user", "content": "a"}])


def test_damaged_files(folder):
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config.json is no JSON"):
        tokenizer_from_huggingface(folder, ())
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer.json is no tokenizer"):
        tokenizer_from_huggingface(folder, ())
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"tokenizer.json is missing"):
        tokenizer_from_huggingface(folder, ())
