"""The tokenizer that an executor hands out, as the client uses it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import pytest
from specsched_client import InvalidRequestError, MissingDependencyError, ServerError
from specsched_client._tokenizer import HuggingFaceCodec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.executor.gateway.fakes import WordTokenizer


def byte_tokenizer() -> Tokenizer:
    """One token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def files(template: str | None = None, **config: object) -> Mapping[str, bytes]:
    options = {"chat_template": template, **config} if template else config
    return {
        "tokenizer.json": byte_tokenizer().to_str().encode(),
        "tokenizer_config.json": json.dumps(options).encode(),
    }


def chat(codec: HuggingFaceCodec, *messages: Mapping[str, str]) -> str:
    return byte_tokenizer().decode(codec.encode_chat(messages))


def test_a_character_is_shown_when_its_last_byte_is_there() -> None:
    codec = HuggingFaceCodec(files())
    decoder = codec.decoder()
    shown = [decoder.push([token_id]) for token_id in codec.encode("aé🙂b")]
    assert shown == ["a", "", "é", "", "", "", "🙂", "b"]
    assert decoder.flush() == ""


def test_bytes_that_stay_incomplete_come_with_the_flush() -> None:
    codec = HuggingFaceCodec(files())
    decoder = codec.decoder()
    assert decoder.push(codec.encode("a🙂")[:-1]) == "a"
    assert decoder.flush() == "\N{REPLACEMENT CHARACTER}"


def test_templates_see_messages_and_special_tokens() -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}>{% endif %}{{ eos_token }}"
    special = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}}
    codec = HuggingFaceCodec(files(template, **special))
    messages = {"role": "system", "content": "a"}, {"role": "user", "content": "b"}
    assert chat(codec, *messages) == "<s>[system]a[user]b></s>"


def test_templates_have_the_helpers_of_hugging_face() -> None:
    template = "{{ messages | tojson }}{{ strftime_now('%%') }}"
    codec = HuggingFaceCodec(files(template))
    assert (
        chat(codec, {"role": "user", "content": "<é>"}) == '[{"role": "user", "content": "<é>"}]%'
    )


def test_a_template_in_a_file_of_its_own() -> None:
    codec = HuggingFaceCodec({**files(), "chat_template.jinja": b"{{ messages[0].content }}!"})
    assert chat(codec, {"role": "user", "content": "hi"}) == "hi!"


def test_what_a_template_refuses_is_an_invalid_request() -> None:
    codec = HuggingFaceCodec(files("{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        codec.encode_chat([{"role": "user", "content": "x"}])


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    codec = HuggingFaceCodec(files("{{ messages.__class__.__mro__ }}"))
    with pytest.raises(InvalidRequestError, match="unsafe"):
        codec.encode_chat([{"role": "user", "content": "x"}])


def test_no_template() -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        HuggingFaceCodec(files()).encode_chat([{"role": "user", "content": "x"}])


def test_a_template_that_does_not_compile_is_the_servers_fault() -> None:
    with pytest.raises(ServerError, match="does not compile"):
        HuggingFaceCodec(files("{% if %}"))


def test_an_archive_without_a_tokenizer_is_the_servers_fault() -> None:
    with pytest.raises(ServerError, match=r"no tokenizer\.json"):
        HuggingFaceCodec({"README": b""})


@pytest.mark.parametrize("package", ["tokenizers", "jinja2.ext"])
def test_text_without_its_packages_says_how_to_get_them(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        HuggingFaceCodec(WordTokenizer().files())


def test_text_that_utf_8_cannot_hold_is_refused() -> None:
    codec = HuggingFaceCodec(files("{{ messages[0].content }}"))
    for encode in (codec.encode, lambda text: chat(codec, {"role": "user", "content": text})):
        with pytest.raises(InvalidRequestError, match=r"holds '.udcff' at character 2"):
            encode("ab\udcff")
