"""Oracles on recorded steps: they find what is best, and schedules are judged fairly by them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.json_format import MessageToJson
from specsched_protocol.v1 import plan_pb2
from specsched_scheduler.decision.wire import cost_model_from_message
from specsched_scheduler.learning.calibration.observations import Observations, to_logit
from specsched_scheduler.learning.errors import TraceError
from specsched_scheduler.policies import build_policy
from specsched_scheduler.replay_command import replay as replay_command
from specsched_scheduler.trace.oracle.cost_file import read_cost
from specsched_scheduler.trace.oracle.drafts import steps_of_drafts
from specsched_scheduler.trace.oracle.probabilities import by_confidence, by_request, isotonic
from specsched_scheduler.trace.oracle.recorded import recorded_steps
from specsched_scheduler.trace.oracle.regret import judge_choices
from specsched_scheduler.trace.oracle.step import OracleStep, share_out
from specsched_scheduler.trace.reader import read_trace_files
from typer import Typer
from typer.testing import CliRunner

FIXTURES = Path(__file__).parents[2] / "fixtures"
DEMO = FIXTURES / "demo-trace.parquet"
K = 4
COST = plan_pb2.CostModel(
    verify=[plan_pb2.VerifyCost(tokens=n, ms=[10.0 + 2 * n]) for n in (1, 2, 3, 4, 5, 6, 40)],
    capture_limit=40,
)
TABLE = cost_model_from_message(COST, K).compile()


def step(
    survival: list[list[float]],
    accepted: list[int],
    *,
    ms: list[float],
    verified: list[int] | None = None,
    choice: list[int] | None = None,
    first_group: int = 0,
) -> OracleStep:
    num, k = len(survival), len(survival[0])
    return OracleStep(
        survival=np.array(survival),
        num_drafts=np.full(num, k),
        num_verified=np.array(verified or [k] * num),
        num_accepted=np.array(accepted),
        group=np.arange(num) + first_group,
        ms=np.array(ms),
        choices=(np.array(choice or [0] * num),),
    )


def bernoulli(confidence: np.ndarray, seed: int = 0, steps_per_request: int = 20) -> Observations:
    """Drafts that are accepted just as often as their confidence says."""
    rng = np.random.default_rng(seed)
    lost = rng.random(confidence.shape) >= confidence
    num_accepted = np.where(lost.any(axis=1), lost.argmax(axis=1), confidence.shape[1])
    num = len(confidence)
    return Observations(
        logit=to_logit(confidence),
        num_verified=np.full(num, confidence.shape[1]),
        num_accepted=num_accepted,
        group=np.arange(num) // steps_per_request,
    )


def test_known_outcomes_count_and_open_ones_by_their_chance():
    survival = np.array([[0.9, 0.72, 0.504], [0.6, 0.3, 0.12], [0.5, 0.25, 0.1]])
    one = step(survival.tolist(), [1, 1, 0], verified=[2, 1, 0], ms=[1.0] * 10)
    np.testing.assert_allclose(one.outcome(survival), [[1, 0, 0], [1, 0.5, 0.2], [0.5, 0.25, 0.1]])


def test_a_budget_goes_to_the_best_within_the_cap():
    score = np.array([[0.9, 0.8, 0.7], [0.8, 0.1, 0.05]])
    num_drafts = np.array([3, 2])
    assert share_out(score, num_drafts, 3).tolist() == [2, 1]
    assert share_out(score, num_drafts, 4).tolist() == [3, 1]
    assert share_out(score, num_drafts, 9).tolist() == [3, 2]
    assert share_out(score, num_drafts, 9, 1).tolist() == [1, 1]


def test_isotonic_regression_pools_what_falls():
    x = np.array([0.3, 0.1, 0.2, 0.4, 0.4])
    y = np.array([0.0, 0.0, 1.0, 1.0, 0.0])
    values, means = isotonic(x, y)
    assert values.tolist() == [0.1, 0.2]  # from 0.2 on: 1, 0 and the mean of 1 and 0
    assert means.tolist() == [0.0, 0.5]
    rng = np.random.default_rng(3)
    x = rng.random(4000)
    values, means = isotonic(x, (rng.random(4000) < x**2).astype(float))
    assert (np.diff(means) > 0).all()
    assert np.abs(means - values**2).mean() < 0.05


def test_own_requests_teach_nothing_about_themselves():
    """All drafts look the same; those of request 0 are lost, those of others are accepted."""
    steps = [
        step([[0.5]], [int(group > 0)], ms=[1.0, 1.0], first_group=group)
        for group in (0, 0, 0, 0, 1, 2, 3, 4)
    ]
    probabilities = by_confidence(steps)
    assert [float(p[0, 0]) for p in probabilities[:4]] == [1.0] * 4
    assert float(probabilities[4][0, 0]) == pytest.approx(3 / 7)
    outcomes = [each.outcome(p) for each, p in zip(steps, probabilities, strict=True)]
    aware = by_request(steps, probabilities, outcomes)
    # Three other steps of that request: none of three expected drafts came.
    assert float(aware[0][0, 0]) == pytest.approx(10 / 13)
    assert float(aware[4][0, 0]) == pytest.approx(3 / 7)  # its only step


def test_the_clairvoyant_oracle_finds_the_best_of_all_choices():
    rng = np.random.default_rng(7)
    steps = [
        step(
            np.sort(rng.random((2, 2)))[:, ::-1].tolist(),
            rng.integers(0, 3, 2).tolist(),
            ms=np.cumsum(rng.uniform(0.5, 3.0, 5)).tolist(),
            first_group=2 * index,
        )
        for index in range(4)
    ]
    report = judge_choices(steps)
    options = [
        [
            one.taken(np.array(lens), one.outcome(one.survival))
            for lens in itertools.product(range(3), repeat=2)
        ]
        for one in steps
    ]
    best = max(
        sum(tokens for tokens, _ in chosen) / sum(ms for _, ms in chosen)
        for chosen in itertools.product(*options)
    )
    assert report.oracles["clairvoyant"].tokens_per_second == pytest.approx(best * 1e3)
    off = sum(2.0 for _ in steps) / sum(float(one.ms[0]) for one in steps)
    regret = report.oracles["clairvoyant"].regrets[0]
    assert (regret.mean, regret.low) == (pytest.approx(1 - off / best), None)


@pytest.mark.parametrize("policy", ["throughput", "off", "fixed(1)", "fixed(4)"])
def test_regret_is_what_can_be_worked_out(policy: str):
    """One request, drafts of one confidence: tokens and time of each length are known."""
    confidence = 0.7
    recorded = bernoulli(np.full((6000, K), confidence))
    survival = np.tile(np.cumprod(np.full(K, confidence)), (6000, 1))
    steps = list(steps_of_drafts(recorded, survival, build_policy(policy), TABLE, num_requests=1))
    rate = [(1 + sum(confidence**j for j in range(1, n + 1))) / (12 + 2 * n) for n in range(K + 1)]
    length = {"off": 0, "fixed(1)": 1, "fixed(4)": 4}.get(policy, int(np.argmax(rate)))
    expected = 1 - rate[length] / max(rate)
    report = judge_choices(steps)
    regret = report.oracles["confidence"].regrets[0]
    assert len(steps) > 5900
    assert regret.mean == pytest.approx(expected, abs=0.02)
    assert regret.low <= regret.mean <= regret.high
    assert report.oracles["clairvoyant"].regrets[0].mean > regret.mean
    assert report.open_share == 0.0


def test_confidences_a_step_old_cost_something():
    """Where confidences change from step to step, old ones give the wrong budget."""
    rng = np.random.default_rng(5)
    confidence = np.where(rng.random((6000, 1)) < 0.5, 0.95, 0.05) * np.ones((1, K))
    recorded = bernoulli(confidence)
    survival = np.cumprod(confidence, axis=1)
    steps = list(
        steps_of_drafts(recorded, survival, build_policy("throughput"), TABLE, num_requests=1)
    )
    assert judge_choices(steps).oracles["confidence"].regrets[0].low > 0.05


def test_no_draft_is_used_twice():
    recorded = bernoulli(np.full((400, K), 0.5))
    survival = np.arange(400.0)[:, None] * np.ones((1, K))  # tells rows apart
    seen = np.concatenate(
        [
            each.survival[:, 0]
            for each in steps_of_drafts(
                recorded, survival, build_policy("off"), TABLE, num_requests=5
            )
        ]
    )
    assert len(seen) == len(np.unique(seen)) > 200
    with pytest.raises(TraceError, match="20 requests were recorded, too few for 21"):
        list(steps_of_drafts(recorded, survival, build_policy("off"), TABLE, num_requests=21))


# ===================== Recorded traces =====================


def test_outcomes_are_joined_with_the_confidences_of_their_own_drafts():
    (file,) = read_trace_files(DEMO)
    steps = list(recorded_steps([file], build_policy("throughput")))
    assert 0.9 * len(file.steps) < len(steps) < len(file.steps)
    recorded = {each.step_id: each for each in file.steps if each.outcome is not None}
    own = {each.source_step_id + 1: each for each in file.steps}
    judged, num_told = [number for number in recorded if number in own], 0
    for number, one in zip(judged, steps, strict=True):
        assert one.group.tolist() == recorded[number].outcome_request.tolist()
        drafts = own[number]
        rows = [drafts.request.tolist().index(group) for group in one.group.tolist()]
        theirs = drafts.inputs.confidence[rows]
        is_told = np.isfinite(theirs).all(axis=1)
        num_told += int(is_told.sum())
        np.testing.assert_allclose(one.survival[is_told], np.cumprod(theirs[is_told], axis=1))
        # What was run is the first choice; it brought what was reported.
        tokens, ms = one.taken(one.choices[0], one.outcome(one.survival))
        outcome = recorded[number].outcome
        assert tokens == len(one.group) + outcome.num_accepted.sum()
        assert ms == pytest.approx(outcome.measured_ms)
    assert num_told > 100


# ===================== The command =====================


@pytest.fixture
def app() -> Typer:
    app = Typer()
    app.command()(replay_command)
    return app


def test_command_tells_of_oracles(app: Typer):
    call = [str(DEMO), "--policy", "fixed(7)", "--oracle"]
    report = json.loads(CliRunner().invoke(app, [*call, "--json"]).output)["oracle"]
    regrets = {name: each["regret"] for name, each in report["oracles"].items()}
    assert set(regrets) == {"confidence", "request", "clairvoyant"}
    assert regrets["confidence"]["new"]["mean"] > regrets["confidence"]["recorded"]["mean"]
    assert 0 < report["open_share"] < 0.5
    assert "clairvoyant" in CliRunner().invoke(app, call).output


def test_recorded_drafts_are_put_together_to_steps(app: Typer, tmp_path: Path):
    drafts, cost = tmp_path / "drafts.npz", tmp_path / "cost.json"
    confidence = np.random.default_rng(1).uniform(0.2, 0.9, (600, K))
    recorded = bernoulli(confidence)
    np.savez(drafts, conf=confidence, accepted=recorded.num_accepted, request=recorded.group)
    cost.write_text(MessageToJson(COST))
    call = [str(drafts), "--policy", "throughput", "--cost", str(cost), "--requests", "2"]
    done = CliRunner().invoke(app, [*call, "--class", "greedy", "--json"])
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.output)["results"]
    assert (result["class"], result["num_requests"]) == ("greedy", 2)
    assert abs(result["oracle"]["oracles"]["confidence"]["regret"]["new"]["mean"]) < 0.1
    assert "sampled, 2 requests at once" in CliRunner().invoke(app, call).output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["drafts.npz"], "--cost is needed"),
        (["drafts.npz", "--cost", "cost.json"], "drafts.npz: No such file"),
        (["drafts.npz", "--cost", "cost.json", "--steps"], "take no --steps"),
        ([str(DEMO), "--requests", "3"], "--cost, --requests and --class are for recorded drafts"),
    ],
)
def test_what_cannot_be_judged_is_refused(app: Typer, options: list[str], message: str):
    done = CliRunner().invoke(app, [*options, "--policy", "off"])
    assert (done.exit_code, message in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "no cost profile"), ("{}", "too few sizes"), ('{"verify": 3}', "no cost profile")],
)
def test_bad_cost_files_are_refused_by_name(tmp_path: Path, text: str, message: str):
    file = tmp_path / "cost.json"
    file.write_text(text)
    with pytest.raises(TraceError, match=rf"cost\.json: .*{message}"):
        read_cost(file, K)
    assert read_cost(DEMO, 7).has_model
