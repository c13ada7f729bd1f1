"""What the executor tells others about its model."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.metadata import version

from specsched_protocol.v1 import scheduler_pb2

from specsched_executor.config import ExecutorConfig
from specsched_executor.engine import EngineConfig, EngineStats
from specsched_executor.gateway import GatewayConfig, ServedModel
from specsched_executor.model import DecoderSpec, LoadedModel
from specsched_executor.model.attention_plan import AttentionPlan

__all__ = [
    "EXECUTOR_VERSION",
    "attention_facts",
    "executor_name",
    "gateway_config",
    "model_facts",
    "model_name",
    "plan_outcomes",
    "served_model",
]

EXECUTOR_VERSION = version("specsched")


def model_name(config: ExecutorConfig, loaded: LoadedModel) -> str:
    """The name clients see: the one given, else that of the file or folder; and what is made up."""
    name = config.served_model_name or loaded.source.stem
    return f"{name} ({', '.join(config.synthetic_parts)})" if config.synthetic_parts else name


def executor_name() -> str:
    """How logs and status tell executors of one machine apart."""
    return f"executor-{os.getpid()}"


def plan_outcomes(stats: EngineStats) -> scheduler_pb2.PlanOutcomes:
    """How many steps had a plan, and why others had none, for schedulers."""
    return scheduler_pb2.PlanOutcomes(
        num_planned_steps=stats.num_planned_steps,
        num_fallback_steps={str(why): count for why, count in stats.num_fallback_steps.items()},
    )


def gateway_config(config: ExecutorConfig) -> GatewayConfig:
    """Where the gateway API is served."""
    where = GatewayConfig(
        host=config.host, port=config.port, listen=config.listen_address, tls=config.tls
    )
    if config.max_messages_per_second is None:
        return where
    return replace(where, max_chunks_per_second=config.max_messages_per_second)


def model_facts(
    config: ExecutorConfig, loaded: LoadedModel, sizes: EngineConfig
) -> scheduler_pb2.ModelFacts:
    """For schedulers."""
    return scheduler_pb2.ModelFacts(
        name=model_name(config, loaded),
        dtype=loaded.dtype,
        device="cuda" if config.device == "cuda" else "cpu",
        max_requests=sizes.max_num_seqs,
        max_draft_tokens=config.max_draft_tokens,
        max_context_tokens=sizes.max_context_tokens or loaded.config.max_context_tokens,
        drafter=config.drafter,
    )


def served_model(config: ExecutorConfig, loaded: LoadedModel, sizes: EngineConfig) -> ServedModel:
    """For gateways and clients."""
    model = loaded.config
    family = _family(loaded.spec)
    bos = model.bos_token_id if model.bos_token_id is not None else -1
    return ServedModel(
        name=model_name(config, loaded),
        path=str(loaded.source),
        model_type=family[0],
        architectures=(family[1],),
        max_context_tokens=sizes.max_context_tokens or model.max_context_tokens,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids,
        pad_token_id=model.eos_token_ids[0] if model.eos_token_ids else -1,
        bos_token_id=bos,
        max_requests=sizes.max_num_seqs,
        dtype=loaded.dtype,
        block_size=sizes.block_size,
        attention_backend=loaded.model.attention_plan.name,
    )


def attention_facts(plan: AttentionPlan) -> dict[str, str]:
    """For the log: what runs attention, and whether DeepGEMM has a part in it, or why not."""
    if plan.indexer is None:
        return {"backend": plan.name}
    device = plan.indexer.device
    return {"backend": plan.name, "deep_gemm": device.reason or "works"}


def _family(spec: DecoderSpec) -> tuple[str, str]:
    """model_type and architecture of config.json."""
    if spec.sparse_mla is not None:
        return "deepseek_v32", "DeepseekV32ForCausalLM"
    # The other two differ in the norm of queries and keys.
    return ("qwen3", "Qwen3ForCausalLM") if spec.qk_norm else ("llama", "LlamaForCausalLM")
