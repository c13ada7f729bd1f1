"""What the measured processes say of themselves."""

from __future__ import annotations

from dataclasses import dataclass

from specsched_protocol.policy_text import policy_text
from specsched_protocol.v1.scheduler_pb2 import GetStatusResponse, LaneRole, Transport

from specsched_client._async_client import AsyncClient
from specsched_client._errors import UnsupportedError
from specsched_client._scheduler_client import AsyncSchedulerClient

__all__ = ["ExecutorFacts", "SchedulerFacts", "ask_executor", "ask_scheduler"]


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """schedulers: how each attached one is reached, "NAME (transport)"; the active one first.

    max_requests: None from a server of the same API that does not tell its load.
    """

    target: str
    server_type: str
    model: str
    dtype: str
    max_context_tokens: int
    max_requests: int | None
    schedulers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """Of the scheduler whose policy is set; what follows `policies` is of its first executor.

    lane_role: whether that executor follows it; None where the executor does not tell.
    """

    version: str
    policy: str
    policies: tuple[str, ...]
    lane_role: str | None
    device: str | None
    drafter: str | None
    max_draft_tokens: int | None


async def ask_executor(client: AsyncClient, target: str) -> ExecutorFacts:
    """Facts of the executor at `target`."""
    model, server = await client.model_info(), await client.server_info()
    return ExecutorFacts(
        target=target,
        server_type=server.server_type,
        model=model.served_model_name,
        dtype=server.model_dtype,
        max_context_tokens=model.max_context_length,
        max_requests=await _max_requests(client),
        schedulers=await _schedulers(client),
    )


async def ask_scheduler(target: str) -> SchedulerFacts:
    """Facts of the scheduler at `target`."""
    async with AsyncSchedulerClient(target) as scheduler:
        status: GetStatusResponse = await scheduler.status()
    models = [attachment.model for attachment in status.attachments]
    roles = [each.lane_status.role for each in status.attachments if each.HasField("lane_status")]
    return SchedulerFacts(
        version=status.version,
        policy=policy_text(status.policy),
        policies=tuple(status.policies),
        lane_role=LaneRole.Name(roles[0]) if roles else None,
        device=models[0].device if models else None,
        drafter=models[0].drafter if models else None,
        max_draft_tokens=models[0].max_draft_tokens if models else None,
    )


async def _max_requests(client: AsyncClient) -> int | None:
    try:
        loads = (await client.loads()).loads
    except UnsupportedError:
        return None
    return loads[0].max_running_requests if loads else None


async def _schedulers(client: AsyncClient) -> tuple[str, ...]:
    try:
        attached = (await client.schedulers()).schedulers
    except UnsupportedError:
        return ()
    ordered = sorted(attached, key=lambda each: not each.active)
    return tuple(f"{each.name} ({Transport.Name(each.transport)})" for each in ordered)
