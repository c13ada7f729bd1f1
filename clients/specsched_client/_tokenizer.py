"""The model's tokenizer and chat template, as the executor hands them out."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from smg_grpc_proto.generated import common_pb2

from specsched_client._errors import (
    InvalidRequestError,
    MissingDependencyError,
    NoChatTemplateError,
    ServerError,
)
from specsched_client._types import Message

if TYPE_CHECKING:
    import jinja2
    import tokenizers

_MAX_ARCHIVE_BYTES = 256 * 1024 * 1024


class TokenizerArchive:
    """Collects the chunks of GetTokenizer; without input or output."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._sha256 = ""

    def feed(self, chunk: common_pb2.GetTokenizerChunk) -> None:
        """Add a chunk. Raises ServerError when there is no end of them."""
        self._data += chunk.data
        self._sha256 = chunk.sha256 or self._sha256
        if len(self._data) > _MAX_ARCHIVE_BYTES:
            raise ServerError(f"the tokenizer is larger than {_MAX_ARCHIVE_BYTES} bytes")

    def codec(self) -> HuggingFaceCodec:
        """The tokenizer, once all chunks are in. Raises ServerError for a damaged archive."""
        if hashlib.sha256(self._data).hexdigest() != self._sha256:
            raise ServerError("the tokenizer arrived damaged: its SHA-256 does not match")
        with zipfile.ZipFile(io.BytesIO(self._data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _MAX_ARCHIVE_BYTES:
                raise ServerError(f"the tokenizer unpacks to more than {_MAX_ARCHIVE_BYTES} bytes")
            files = {name: archive.read(name) for name in archive.namelist()}
        return HuggingFaceCodec(files)


class HuggingFaceCodec:
    """tokenizer.json, tokenizer_config.json and, where it is apart, chat_template.jinja."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._tokenizer = _load_tokenizer(files)
        self._config: dict[str, Any] = json.loads(files.get("tokenizer_config.json", b"{}"))
        apart = files.get("chat_template.jinja")
        template = apart.decode() if apart else self._config.get("chat_template")
        self._template = _compile(template) if template else None

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt. Raises InvalidRequestError for lone surrogates."""
        _require_unicode(text)
        return list(self._tokenizer.encode(text).ids)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation; the template writes all special tokens itself."""
        import jinja2

        if self._template is None:
            raise NoChatTemplateError
        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=True, **self._special_tokens()
            )
        except jinja2.TemplateError as error:
            raise InvalidRequestError(f"the chat template refuses the messages: {error}") from error
        _require_unicode(text)
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decoder(self) -> StreamDecoder:
        """A decoder for one output."""
        return StreamDecoder(self._tokenizer)

    def _special_tokens(self) -> dict[str, str]:
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        values = {name: self._config.get(name) for name in names}
        # A token is written as its text or as {"content": text, ...}.
        texts = {k: v.get("content") if isinstance(v, dict) else v for k, v in values.items()}
        return {name: text for name, text in texts.items() if text}


class StreamDecoder:
    """Text of a growing output; a character is shown once all its bytes are there."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._token_ids: list[int] = []
        self._num_shown = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that became complete."""
        self._token_ids += token_ids
        pieces = (self._stream.step(self._tokenizer, token_id) for token_id in token_ids)
        text = "".join(piece for piece in pieces if piece)
        self._num_shown += len(text)
        return text

    def flush(self) -> str:
        """Text that was still held back: bytes that no token completed."""
        whole = self._tokenizer.decode(self._token_ids, skip_special_tokens=True)
        return str(whole[self._num_shown :])


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the prompt holds {text[error.start]!r} at character {error.start}; accepted: text"
            " that UTF-8 can hold"
        ) from error


def _load_tokenizer(files: Mapping[str, bytes]) -> tokenizers.Tokenizer:
    try:
        import tokenizers
    except ImportError as error:
        _raise_missing("tokenizers", error)
    if "tokenizer.json" not in files:
        raise ServerError(f"the tokenizer has no tokenizer.json, only {sorted(files)}")
    return tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())


def _compile(template: str) -> jinja2.Template:
    try:
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        _raise_missing("jinja2", error)
    # A template is a program that came with a model: it runs in the sandbox.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    # What the templates of Hugging Face models may rely on.
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_template_error
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise ServerError(f"the chat template does not compile: {error}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _strftime_now(pattern: str) -> str:
    return dt.datetime.now().astimezone().strftime(pattern)


def _raise_template_error(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _raise_missing(package: str, error: ImportError) -> NoReturn:
    raise MissingDependencyError(
        f"text prompts need the package {package}: pip install {package} (token ids work without)"
    ) from error
