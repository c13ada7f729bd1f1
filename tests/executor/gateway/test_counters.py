"""`ExecutorService` tells what the engine counted, field by field."""

from __future__ import annotations

from types import SimpleNamespace

from specsched_executor.gateway.api import StepTotals
from specsched_executor.gateway.counters_servicer import CountersServicer, to_step_counters
from specsched_protocol.plan import FallbackReason
from specsched_protocol.v1.executor_pb2 import (
    AttachedScheduler,
    GetStepCountersRequest,
    ListSchedulersRequest,
    ListSchedulersResponse,
    StepCounters,
)

NAMES = [field.name for field in StepCounters.DESCRIPTOR.fields]
TOTALS = {name: number for number, name in enumerate(NAMES, start=1)} | {
    "num_fallback_steps": {FallbackReason.LATE: 4, FallbackReason.NO_SCHEDULER: 2}
}


def test_every_field_carries_the_total_of_its_name():
    counters = to_step_counters(SimpleNamespace(**TOTALS))
    assert dict(counters.num_fallback_steps) == {"late": 4, "no_scheduler": 2}
    for name in set(NAMES) - {"num_fallback_steps"}:
        assert getattr(counters, name) == TOTALS[name]


def test_message_and_engine_speak_of_the_same_totals():
    assert {name for name in vars(StepTotals) if name.startswith("num_")} == set(NAMES)


async def test_the_totals_are_read_when_asked():
    totals = SimpleNamespace(**TOTALS)
    servicer = CountersServicer(SimpleNamespace(stats=lambda: totals))
    before = await servicer.GetStepCounters(GetStepCountersRequest(), None)
    totals.num_steps += 5
    after = await servicer.GetStepCounters(GetStepCountersRequest(), None)
    assert after.counters.num_steps - before.counters.num_steps == 5
    assert after.uptime_seconds >= before.uptime_seconds


async def test_schedulers_are_asked_for_when_listed():
    attached = ListSchedulersResponse()
    servicer = CountersServicer(SimpleNamespace(), lambda: attached)
    request = ListSchedulersRequest()
    assert not (await servicer.ListSchedulers(request, None)).schedulers
    attached.schedulers.append(AttachedScheduler(name="a", active=True))
    (listed,) = (await servicer.ListSchedulers(request, None)).schedulers
    assert (listed.name, listed.active) == ("a", True)
