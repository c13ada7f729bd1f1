"""The policy of a scheduler, borrowed for the time of a measurement."""

from __future__ import annotations

import asyncio

from specsched_protocol.policy_text import policy_text
from specsched_protocol.v1.plan_pb2 import PolicySpec

from specsched_client._errors import InvalidRequestError
from specsched_client._scheduler_client import AsyncSchedulerClient

__all__ = ["BorrowedPolicy"]


class BorrowedPolicy:
    """Sets policies of a scheduler and notices when somebody else does."""

    def __init__(self, scheduler: AsyncSchedulerClient) -> None:
        self._scheduler = scheduler
        self._found: PolicySpec | None = None
        self._own: PolicySpec | None = None
        self._change: asyncio.Task[None] | None = None

    async def set(self, policy: str) -> None:
        """Have the scheduler decide by `policy`.

        Raises SpecschedError where it refuses, and where somebody else set another one meanwhile.
        """
        self.require_own((await self._scheduler.status()).policy)
        # A change that was begun is carried out: otherwise nobody knew whose policy is in force.
        self._change = asyncio.create_task(self._set(policy))
        await asyncio.shield(self._change)

    def require_own(self, present: PolicySpec) -> None:
        """Raise InvalidRequestError unless the policy in force is the one that was set last."""
        if self._own is None or self._found is None:
            return
        if present != self._own:
            raise InvalidRequestError(
                f"the policy was set to {policy_text(present)} by somebody else while"
                f" {policy_text(self._own)} was measured; accepted: one measurement of a scheduler"
                f" at a time, and no other change (before this one it was"
                f" {policy_text(self._found)})"
            )

    async def put_back(self) -> None:
        """Set the policy that was found, where the present one is still the one set here."""
        if self._change is not None:
            await asyncio.wait([self._change])
        if self._own is None or self._found is None:
            return
        if (await self._scheduler.status()).policy == self._own:
            await self._scheduler.set_policy(self._found)

    async def _set(self, policy: str) -> None:
        found = self._found or (await self._scheduler.status()).policy
        self._own = (await self._scheduler.set_policy(policy)).policy
        self._found = found
