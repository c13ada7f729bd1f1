"""Options that put something made up in place of a real model. Importable without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from specsched_executor.device_config import DeviceConfig
from specsched_executor.presets import PRESETS

__all__ = ["SyntheticConfig"]


class SyntheticConfig(DeviceConfig):
    """For measuring what a model costs whose weights are not there. Its text means nothing."""

    env_prefix = "SPECSCHED_EXECUTOR_"

    load_format: Literal["auto", "dummy"] = Field(
        "auto",
        description="auto: the weights of the model; dummy: random ones, in the shape that"
        " config.json of the model's folder gives, or a preset. Every name of the model then says"
        " so",
    )
    preset: str | None = Field(
        None,
        description="Shape of dummy weights where no model is given, one token for each byte:"
        f" {', '.join(PRESETS)}",
    )

    acceptance_trace: Path | None = Field(
        None,
        description="Recorded drafts (.npz) whose confidences and outcomes take the place of the"
        " drafter's and the target's, which both do all their work; every name of the model says"
        " synthetic acceptance. On a GPU, with a dspark drafter",
    )

    @field_validator("acceptance_trace")
    @classmethod
    def _check_trace(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_file():
            raise ValueError("no such file; accepted: an .npz of recorded drafts")
        return path

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, preset: str | None) -> str | None:
        if preset is not None and preset not in PRESETS:
            raise ValueError(f"accepted: {', '.join(PRESETS)}")
        return preset

    @model_validator(mode="after")
    def _check_preset_applies(self) -> Self:
        if self.preset is not None and self.load_format != "dummy":
            raise ValueError(
                f"preset has no effect with load_format = {self.load_format}: set dummy, or drop it"
            )
        return self

    @model_validator(mode="after")
    def _check_trace_applies(self) -> Self:
        if self.acceptance_trace is not None and self.device == "cpu":
            raise ValueError("acceptance_trace needs a GPU: set device = cuda, or drop it")
        return self

    @property
    def synthetic_parts(self) -> tuple[str, ...]:
        """What is not that of a real model, for names and reports; empty as a rule."""
        weights = ("random weights",) if self.load_format == "dummy" else ()
        return (*weights, "synthetic acceptance") if self.acceptance_trace else weights
