"""JSON objects of a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specsched_executor.model._errors import ModelFormatError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; ModelFormatError when it is missing or no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFormatError(f"{path} is missing") from None
    except OSError as error:
        raise ModelFormatError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelFormatError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelFormatError(f"{path} holds a {type(content).__name__}, expected an object")
    return content
