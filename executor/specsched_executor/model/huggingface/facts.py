"""Values of a config.json, with errors that name the file and the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsched_executor.model._errors import ModelFormatError, UnsupportedModelError
from specsched_executor.model.huggingface.json_file import read_json

__all__ = ["ConfigFacts"]


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """The object in a config.json. path: where it came from, for messages."""

    path: Path
    content: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> ConfigFacts:
        """Those of a file; ModelFormatError where it is missing or no JSON object."""
        return cls(path, read_json(path))

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; ModelFormatError for anything else."""
        value = self.content.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ModelFormatError(f"{self.path}: {key} is {value!r}, expected a positive number")
        return value

    def integer(self, key: str, default: float | None = None) -> int:
        """A positive whole number; ModelFormatError for anything else."""
        value = self.number(key, default)
        if value != int(value):
            raise ModelFormatError(f"{self.path}: {key} is {value!r}, expected a whole number")
        return int(value)

    def refuse_other(self, key: str, accepted: tuple[Any, ...], default: Any = None) -> None:
        """Raise UnsupportedModelError unless the value is one of those accepted."""
        value = self.content.get(key, default)
        if value not in accepted:
            raise UnsupportedModelError(
                f"{self.path}: {key} is {value!r}; served: {', '.join(map(repr, accepted))}"
            )
