"""Chat templates: rendered in a sandbox, with errors that say what was wrong."""

from __future__ import annotations

import pytest
from specsched_executor.tokenizer import ChatTemplate, TokenizerError

MESSAGES = [{"role": "user", "content": "hi"}]


def test_variables_and_helpers():
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}{% if loop.first %}{{ m | tojson }}{% endif %}"
        "{% endfor %}{{ extra }}{% if add_generation_prompt %}>{% endif %}",
        {"bos_token": "<s>"},
    )
    assert template.render(MESSAGES, extra="é") == '<s>{"role": "user", "content": "hi"}é>'
    assert not template.render(MESSAGES, add_generation_prompt=False).endswith(">")


def test_date_helper():
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}).render(MESSAGES).isdigit()


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no tools') }}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_what_a_template_may_not_do_or_refuses(source):
    with pytest.raises(TokenizerError, match="refuses these messages"):
        ChatTemplate(source, {}).render(MESSAGES)


def test_broken_template():
    with pytest.raises(TokenizerError, match="does not compile"):
        ChatTemplate("{% if %}", {})


def test_no_messages():
    with pytest.raises(TokenizerError, match="at least one message"):
        ChatTemplate("", {}).render([])
