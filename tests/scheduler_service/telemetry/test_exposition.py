"""What is exported is what was planned, decided and reported, and the page says the same."""

from __future__ import annotations

import json
import math

import pytest
from prometheus_client.parser import text_string_to_metric_families
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb
from specsched_scheduler.telemetry import CATALOGUE, as_json

from tests.scheduler_service.service.support import MAX_DRAFT_TOKENS, NUM_REQUESTS
from tests.scheduler_service.telemetry.driving import driven, scrape, telemetry, until

NUM_STEPS = 96
NUM_DRAFTS = NUM_REQUESTS * MAX_DRAFT_TOKENS


@pytest.fixture
async def scheduler(start):
    running = await start(freeze_learning=True)
    await running.until_serving()
    return running


def values(text: str) -> dict[tuple[str, ...], float]:
    """(name, labels beyond scheduler and slot) -> value."""
    return {
        (
            sample.name,
            *(v for k, v in sample.labels.items() if k not in {"scheduler", "slot"}),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_every_metric_of_the_catalogue_is_exported(scheduler, run_dir):
    async with driven(scheduler, run_dir) as executor:
        await executor.run(scheduler, 400)  # a calibration error takes 1000 drafts
        families = {f.name: f for f in text_string_to_metric_families(scrape(scheduler))}
    ours = {name for name in families if not name.startswith("process_")}
    assert ours == {metric.family_name for metric in CATALOGUE}
    empty = {metric.name for metric in CATALOGUE if not families[metric.family_name].samples}
    assert empty == set()
    for metric in CATALOGUE:
        wanted = set(metric.labels or ()) | {"scheduler"}
        for sample in families[metric.family_name].samples:
            assert set(sample.labels) - {"le"} == wanted


async def test_counters_are_those_of_the_steps(scheduler, run_dir):
    async with driven(scheduler, run_dir) as executor:
        await executor.run(scheduler, NUM_STEPS, verify_ms=10.0)
        found, snapshot = values(scrape(scheduler)), telemetry(scheduler)
    assert found["specsched_decisions_total",] == NUM_STEPS
    assert found["specsched_decided_requests_total",] == NUM_STEPS * NUM_REQUESTS
    assert found["specsched_decided_draft_tokens_total",] == NUM_STEPS * NUM_DRAFTS
    assert found["specsched_decided_budget_tokens_total",] == NUM_STEPS * NUM_DRAFTS
    assert found["specsched_plan_latency_seconds_count",] == NUM_STEPS
    assert found["specsched_reports_total",] == NUM_STEPS
    judged = found["specsched_judged_steps_total",]
    # The step that the first report is of was decided by nobody.
    assert judged == NUM_STEPS - 1
    assert found["specsched_judged_step_seconds_total",] == pytest.approx(judged * 0.010)
    # 15 rows cost 9.5 ms by the profile, and without context there is nothing else.
    assert found["specsched_predicted_step_seconds_total",] == pytest.approx(judged * 0.0095)
    assert found["specsched_step_time_ratio_bucket", "1.1"] == judged
    assert found["specsched_step_time_ratio_bucket", "1.05"] == 0
    accepted = found["specsched_judged_accepted_tokens_total",]
    tokens = judged * NUM_REQUESTS + accepted
    # A step of 3 rows costs 3.5 ms; the very first report came before its drafts were seen.
    plain_s = found["specsched_plain_decoding_seconds_total",]
    assert plain_s == pytest.approx(tokens / NUM_REQUESTS * 0.0035, rel=0.05)
    assert snapshot.decisions.newest.num_requests == NUM_REQUESTS


async def test_survival_is_that_of_the_confidences(scheduler, run_dir):
    async with driven(scheduler, run_dir) as executor:
        await executor.run(scheduler, 400)
        found = values(scrape(scheduler))
    for position in range(MAX_DRAFT_TOKENS):
        predicted = found["specsched_survival_predicted", str(position)]
        observed = found["specsched_survival_observed", str(position)]
        assert predicted == pytest.approx(0.9 ** (position + 1), abs=0.005)
        assert observed == pytest.approx(predicted, abs=0.08)
        assert found["specsched_calibration_error", str(position)] < 0.08
    expected = found["specsched_expected_accepted_tokens_total",]
    per_draft = sum(0.9 ** (position + 1) for position in range(MAX_DRAFT_TOKENS))
    drafts = found["specsched_judged_draft_tokens_total",] / MAX_DRAFT_TOKENS
    assert expected == pytest.approx(drafts * per_draft, rel=0.01)


async def test_the_page_gets_what_the_metrics_say(scheduler, run_dir):
    async with driven(scheduler, run_dir) as executor:
        await executor.run(scheduler, NUM_STEPS)
        found = values(scrape(scheduler))
        page = json.loads(json.dumps(as_json(scheduler.server.web.telemetry.snapshot())))
    (it,) = page["executors"]
    assert it["decisions"]["num_decisions"] == found["specsched_decisions_total",]
    assert it["decisions"]["budget"] == found["specsched_decided_budget_tokens_total",]
    assert sum(it["decisions"]["latency_s"]["counts"]) == NUM_STEPS
    for each in it["confidences"]["positions"]:
        key = str(each["position"])
        assert each["predicted"] == found["specsched_survival_predicted", key]
        assert each["observed"] == found["specsched_survival_observed", key]
        drafts = sum(part["num_drafts"] for part in each["bins"])
        assert drafts == pytest.approx(each["num_drafts"])
    assert it["step_times"]["newest"]["num_rows"] == 15
    assert it["cost"]["sizes"] == [1, 3, 8, 15]
    assert it["cost"]["ms"] == [2.5, 3.5, 6.0, 9.5]
    seconds = it["decisions"]["seconds"]
    assert sum(each["num_decisions"] for each in seconds) == NUM_STEPS
    (size,) = it["decisions"]["sizes"]
    assert (size["num_requests"], size["num_decisions"]) == (NUM_REQUESTS, NUM_STEPS)


def test_no_number_of_a_snapshot_breaks_its_json():
    from specsched_scheduler.telemetry.snapshot import HistogramSnapshot, _plain

    odd = {"a": math.nan, "b": [math.inf, 1.5], "c": (1, None, True, "x")}
    assert _plain(odd) == {"a": None, "b": [None, 1.5], "c": [1, None, True, "x"]}
    with pytest.raises(TypeError, match="HistogramSnapshot"):
        _plain(HistogramSnapshot((), (), 0.0))


async def test_slots_are_reused(scheduler, run_dir):
    for count in (1, 2):
        async with driven(scheduler, run_dir):
            assert telemetry(scheduler).slot == 0
            assert values(scrape(scheduler))["specsched_attachments_total",] == count


async def test_only_what_was_followed_is_judged(scheduler, run_dir):
    """A shadow's prediction is of rows that somebody else chose."""
    hello = {"features": [pb.FEATURE_LANE_CONTROL]}
    async with driven(scheduler, run_dir, **hello) as executor:
        await executor.run(scheduler, 32)
        found = values(scrape(scheduler))
        assert found["specsched_judged_steps_total",] == 0
        assert found["specsched_attachment_role", "active"] == 0
        members = [
            pb.LaneMember(lane=0, scheduler_name="v1", role=pb.LANE_ROLE_ACTIVE),
            pb.LaneMember(
                lane=1,
                scheduler_name="v2",
                scheduler_version="2.0",
                role=pb.LANE_ROLE_SHADOW,
                policy=plan_pb2.PolicySpec(name="fixed", parameters={"k": 3.0}),
            ),
        ]
        status = pb.LaneStatus(role=pb.LANE_ROLE_ACTIVE, active_scheduler="v1", members=members)
        await executor.stream.send(lane_status=status)
        await until(lambda: telemetry(scheduler).role == "active")
        await executor.run(scheduler, 32)
        found, snapshot = values(scrape(scheduler)), telemetry(scheduler)
    assert found["specsched_judged_steps_total",] == 32
    assert found["specsched_attachment_role", "active"] == 1
    assert snapshot.active_scheduler == "v1"
    assert [(lane.scheduler, lane.policy, lane.role) for lane in snapshot.lanes] == [
        ("v1", "", "active"),
        ("v2", "fixed(k=3)", "shadow"),
    ]


async def test_a_role_of_a_later_version_is_told_as_such(scheduler, run_dir):
    async with driven(scheduler, run_dir, features=[pb.FEATURE_LANE_CONTROL]) as executor:
        later = pb.LaneMember(lane=1, scheduler_name="v2", role=99)
        await executor.stream.send(lane_status=pb.LaneStatus(role=99, members=[later]))
        await until(lambda: telemetry(scheduler).lanes)
        (lane,) = telemetry(scheduler).lanes
        assert (lane.role, telemetry(scheduler).role) == ("unknown 99", "unknown 99")
        assert values(scrape(scheduler))["specsched_attachment_role", "active"] == 0


async def test_learning_goes_on_where_telemetry_fails(scheduler, run_dir):
    async with driven(scheduler, run_dir) as executor:
        (attachment,) = scheduler.server._attachments

        def fail(*_: object) -> None:
            raise RuntimeError("never thought of this")

        attachment.planning.learning.on_followed = fail
        await executor.run(scheduler, 64)
        assert telemetry(scheduler).learning.num_reports == 64
        assert attachment.planning.learning.look(lambda it: it.pairing.num_paired) > 0
