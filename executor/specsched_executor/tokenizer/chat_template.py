"""Rendering of a checkpoint's chat template.

Templates are programs from a file that was downloaded: they run in jinja2's immutable sandbox, with
the filters and globals that Hugging Face templates rely on (tojson, raise_exception, strftime_now).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from specsched_executor.tokenizer._errors import TokenizerError

ChatMessage = Mapping[str, Any]
"""At least `role` and `content`."""


class ChatTemplate:
    """A compiled template. special_tokens: e.g. {"bos_token": "<s>"}, visible to the template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TokenizerError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt text of a conversation; `variables` (tools, ...) are passed on.

        Raises TokenizerError when there is no message or the template refuses the conversation.
        """
        if not messages:
            raise TokenizerError("a conversation needs at least one message")
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                **{**self._special_tokens, **variables},
            )
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            raise TokenizerError(f"the chat template refuses these messages: {error}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
