"""Options that say what an executor runs on. Importable without torch."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from specsched_executor.link_config import SchedulerLinkConfig

__all__ = ["DeviceConfig"]


class DeviceConfig(SchedulerLinkConfig):
    """Where the model runs, and which of its steps are captured in CUDA graphs."""

    env_prefix = "SPECSCHED_EXECUTOR_"

    device: Literal["auto", "cpu", "cuda"] = Field(
        "cpu",
        description="What the model runs on; auto: a GPU that torch and the kernels can use, else"
        " the CPU. A GPU is not the default yet: serving on one is new",
    )
    enforce_eager: bool = Field(
        False, description="On a GPU, capture no CUDA graphs: a faster start, slower steps"
    )
    capture_sizes: list[int] = Field(
        [],
        description="On a GPU, rows of the steps that are captured, rising; may be repeated, in the"
        " variable separated by commas; none: about four sizes per doubling, up to 2048",
        json_schema_extra={"unit": "rows"},
    )

    indexer_layout: Literal["auto", "native", "flattened", "uniform", "generic"] = Field(
        "auto",
        description="On a GPU, how a lightning indexer's queries are laid out; auto: as the GPU and"
        " DeepGEMM allow. uniform cannot be scheduled, generic needs no DeepGEMM",
    )

    @field_validator("capture_sizes", mode="before")
    @classmethod
    def _split_sizes(cls, value: object) -> object:
        return value.split(",") if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_captures(self) -> Self:
        if self.device == "cpu":
            for name in ("enforce_eager", "capture_sizes", "indexer_layout"):
                if getattr(self, name) not in (False, [], "auto"):
                    raise ValueError(f"{name} has no effect with device = cpu: drop one of them")
        if self.enforce_eager and self.capture_sizes:
            raise ValueError("capture_sizes has no effect with enforce_eager: drop one of them")
        return self
