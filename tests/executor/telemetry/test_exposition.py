"""Names, labels and values of what an executor exports."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from specsched_executor.attach import AttachTotals
from specsched_executor.telemetry import CATALOGUE, RequestMeter
from specsched_executor.telemetry.telemetry import ExecutorTelemetry, Links
from specsched_protocol.metrics import build_registry
from specsched_protocol.plan import FallbackReason
from specsched_protocol.v1 import executor_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from tests.executor.engine.tiny import SilentTransport
from tests.executor.telemetry.test_alerts import driver

VLLM_SPECULATION = {
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
}


def links() -> Links:
    """Two lanes, the second of which shadows and was compared."""
    active = executor_pb2.AttachedScheduler(
        name="v1",
        version="1.0",
        lane=0,
        active=True,
        transport=pb.TRANSPORT_SHARED_MEMORY,
        role=pb.LANE_ROLE_ACTIVE,
    )
    shadow = executor_pb2.AttachedScheduler(
        name="v2",
        version="2.0",
        lane=1,
        transport=pb.TRANSPORT_INLINE,
        role=pb.LANE_ROLE_SHADOW,
        comparison=pb.LaneComparison(
            num_steps=40, mean_regret_tokens=0.25, num_faults={"late": 3, "torn": 1}
        ),
    )
    known = executor_pb2.ListSchedulersResponse(
        schedulers=[active, shadow], num_switches={"first": 1, "promoted": 2}
    )
    return Links(
        True, known, AttachTotals(num_attached=4, num_ended=1, num_crashed=1, num_faults=2)
    )


@pytest.fixture(scope="module")
def families():
    running = driver(SilentTransport(FallbackReason.TORN))
    running.submit([0, 1, 2], seed=1, max_tokens=30, ignore_eos=True)
    running.run()
    telemetry = ExecutorTelemetry("table", running.loop, RequestMeter(), links)
    text = generate_latest(build_registry(telemetry)).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(family) -> dict[tuple[str, ...], float]:
    common = {"model_name", "engine"}
    return {
        tuple(v for k, v in sample.labels.items() if k not in common): sample.value
        for sample in family.samples
    }


def test_every_metric_of_the_catalogue_is_exported_with_its_labels(families):
    assert {name for name in families if not name.startswith("process_")} == {
        metric.family_name for metric in CATALOGUE
    }
    for metric in CATALOGUE:
        family = families[metric.family_name]
        assert family.samples, metric.name
        wanted = set(metric.labels or ()) | {"model_name", "engine"}
        assert all(set(each.labels) - {"le"} == wanted for each in family.samples), metric.name


def test_speculation_has_the_names_of_vllm(families):
    assert {metric.name for metric in CATALOGUE} >= VLLM_SPECULATION
    per_position = samples(families["vllm:spec_decode_num_accepted_tokens_per_pos"])
    assert list(per_position) == [("0",), ("1",), ("2",)]
    total = samples(families["vllm:spec_decode_num_accepted_tokens"])[()]
    assert sum(per_position.values()) == total > 0


def test_reasons_are_told_apart_and_all_of_them_are_there(families):
    fallbacks = samples(families["specsched_fallback_steps"])
    assert set(fallbacks) == {(str(reason),) for reason in FallbackReason}
    assert [reason for (reason,), count in fallbacks.items() if count] == ["torn"]


def test_lanes_are_told_by_number_and_named_once(families):
    info = {tuple(sorted(each.labels.items())) for each in families["specsched_lane_info"].samples}
    assert {dict(labels)["scheduler"] for labels in info} == {"v1", "v2"}
    assert samples(families["specsched_lane_regret_tokens"]) == {("1",): 0.25}
    assert samples(families["specsched_lane_faults"]) == {("1", "late"): 3, ("1", "torn"): 1}
    assert samples(families["specsched_detaches"]) == {("ended",): 1, ("crashed",): 1}
    assert samples(families["specsched_attach_faults"]) == {(): 2}
    switches = samples(families["specsched_switches"])
    assert (switches["promoted",], switches["lost",]) == (2, 0)
    named = {m.name for m in CATALOGUE if "scheduler" in (m.labels or {})}
    assert named == {"specsched_lane_info"}
