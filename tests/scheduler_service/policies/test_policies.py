"""Policies: their text form, the registry, third-party entry points, what each one decides."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specsched_scheduler.decision import (
    NO_CAP,
    CostModel,
    DecisionInputs,
    PolicyCode,
    StepView,
    decide,
)
from specsched_scheduler.policies import (
    Parameter,
    PolicyChoice,
    PolicyError,
    PolicySpec,
    available_policies,
    build_policy,
    registry,
)

# ===================== Text =====================


@pytest.mark.parametrize(
    ("text", "shown", "parameter"),
    [
        ("throughput", "throughput", 0.0),
        (" off ", "off", 0.0),
        ("ratio()", "ratio", 0.0),
        ("fixed(3)", "fixed(3)", 3.0),
        ("fixed(k=0)", "fixed(0)", 0.0),
        ("fixed( k = 2 )", "fixed(2)", 2.0),
        ("threshold(0.3)", "threshold(0.3)", 0.3),
        ("threshold(p=1e-3)", "threshold(0.001)", 1e-3),
    ],
)
def test_text_form(text: str, shown: str, parameter: float) -> None:
    policy = build_policy(text)
    assert str(policy) == shown
    assert policy.rule.parameter == parameter
    assert build_policy(shown).rule == policy.rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "policy '' cannot be read; accepted: NAME, NAME"),
        ("fixed(1", "policy 'fixed(1' cannot be read"),
        ("fixed 1", "policy 'fixed 1' cannot be read"),
        ("3", "policy '3' cannot be read"),
        ("fixed(one)", "policy 'fixed(one)': 'one' is not a finite number"),
        ("fixed(nan)", "policy 'fixed(nan)': 'nan' is not a finite number"),
        ("fixed(1,)", "policy 'fixed(1,)': '' is not a finite number"),
        ("fixed(k=1, k=2)", "policy 'fixed(k=1, k=2)': parameter k is given twice"),
        ("fixed(1, k=2)", "policy fixed: parameter k is given twice"),
        ("fixed(1, 2)", "policy fixed(1, 2): 2 values given; accepted: k"),
        ("off(1)", "policy off(1): 1 values given; accepted: no parameters"),
        ("fixed(p=1)", "policy fixed: unknown parameter 'p'; accepted: k"),
        ("fixed", "policy fixed needs its parameter k, e.g. fixed(k=1)"),
        ("fixed(-1)", "policy fixed: k = -1 must be an integer in 0..4.29497e+09"),
        ("fixed(1.5)", "policy fixed: k = 1.5 must be an integer"),
        ("threshold(1.1)", "policy threshold: p = 1.1 must be a number in 0..1"),
        ("threshold(-0.1)", "policy threshold: p = -0.1 must be a number in 0..1"),
        (
            "Throughput",
            "policy 'Throughput' is unknown; known: throughput, ratio, greedy-causal, fixed",
        ),
    ],
)
def test_errors_name_the_value_and_what_is_accepted(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as error:
        build_policy(text)
    assert str(error.value).startswith(message)


@given(st.text(max_size=30))
def test_any_text_is_a_policy_or_a_policy_error(text: str) -> None:
    try:
        spec = PolicySpec.parse(text)
    except PolicyError:
        return
    assert PolicySpec.parse(str(spec)).name == spec.name


# ===================== Entry points =====================


class Half:
    parameters = (Parameter("share", default=0.5, minimum=0.0, maximum=1.0),)

    def __init__(self, share: float) -> None:
        self.share = share

    def decide(self, step: StepView) -> PolicyChoice:
        return PolicyChoice(int(self.share * step.num_drafts()))


class Greedy:
    parameters = ()

    def decide(self, step: StepView) -> PolicyChoice:
        return PolicyChoice(10**9, max_verify_len=2)


class Negative(Greedy):
    def decide(self, step: StepView) -> PolicyChoice:
        return PolicyChoice(-1)


class Careless(Greedy):
    def decide(self, step: StepView) -> Any:
        return 3


class NoDecide:
    parameters = ()


class NoParameters:
    parameters = ("share",)

    def decide(self, step: StepView) -> PolicyChoice:
        return PolicyChoice(0)


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Declare entry points of the group, as installed packages would."""

    def declare(**targets: str) -> None:
        group = registry.ENTRY_POINT_GROUP
        found = EntryPoints(EntryPoint(name, value, group) for name, value in targets.items())
        monkeypatch.setattr(registry, "entry_points", lambda group: found.select(group=group))

    module = ModuleType("somebody")
    for policy in (Half, Greedy, Negative, Careless, NoDecide, NoParameters):
        setattr(module, policy.__name__, policy)
    monkeypatch.setitem(sys.modules, "somebody", module)
    return declare


def test_third_party_policy_decides(install: Install) -> None:
    install(half="somebody:Half")
    assert available_policies()[-1] == "half"
    policy = build_policy("half(0.25)")
    assert policy.rule.code == PolicyCode.PYTHON
    assert (str(policy), str(build_policy("half"))) == ("half(0.25)", "half(0.5)")
    assert decide(step(), policy, TABLE.compile()).budget == 3


def test_third_party_budget_is_cut_to_the_drafts_present(install: Install) -> None:
    install(greedy="somebody:Greedy")
    outcome = decide(step(), build_policy("greedy"), TABLE.compile())
    assert (outcome.budget, outcome.verify_lens.tolist()) == (8, [2, 2, 2, 2])


@pytest.mark.parametrize(("name", "given"), [("Negative", "budget=-1"), ("Careless", "decided 3")])
def test_third_party_nonsense_is_an_error(install: Install, name: str, given: str) -> None:
    install(odd=f"somebody:{name}")
    with pytest.raises(PolicyError, match=f"policy odd: .*{given}"):
        decide(step(), build_policy("odd"), TABLE.compile())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nobody:Half", "cannot be imported: ModuleNotFoundError"),
        ("somebody:Missing", "cannot be imported: AttributeError"),
        ("somebody:NoDecide", r"has no method `decide\(step\)`"),
        ("somebody:NoParameters", "must be a tuple of Parameter"),
    ],
)
def test_broken_entry_points_are_named(install: Install, value: str, message: str) -> None:
    install(odd=value)
    assert "odd" in available_policies()
    with pytest.raises(
        PolicyError, match=f"^entry point specsched.policies: odd = {value}.*{message}"
    ):
        build_policy("odd")


def test_built_in_names_cannot_be_taken(install: Install) -> None:
    install(throughput="somebody:Half")
    assert available_policies().count("throughput") == 1
    assert build_policy("throughput").rule.code == PolicyCode.THROUGHPUT


def test_one_name_declared_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    group = registry.ENTRY_POINT_GROUP
    points = EntryPoints([EntryPoint("half", "a:A", group), EntryPoint("half", "b:B", group)])
    monkeypatch.setattr(registry, "entry_points", lambda group: points.select(group=group))
    with pytest.raises(PolicyError, match="'half' is declared more than once: a:A, b:B"):
        build_policy("half")


# ===================== What they decide =====================

TABLE = CostModel({4: [10.0], 5: [10.0], 8: [14.0], 16: [14.2]}, 16)
"""Filling the second stair does not pay, the third does."""


def step(**changes: Any) -> DecisionInputs:
    fields: dict[str, Any] = {
        "confidence": np.array(
            [[0.9, 0.5, 0.9], [0.6, 0.6, 0.6], [0.5, 0.9, 0.9], [0.2, 0.2, 0.2]]
        ),
        "num_draft_tokens": np.full(4, 3),
        "has_confidence": np.ones(4, dtype=bool),
        "samples": np.ones(4, dtype=bool),
        "weight": np.ones(4),
        "context_tokens": np.zeros(4, dtype=np.int64),
        "num_other_tokens": 4,
    }
    return DecisionInputs(**(fields | changes))


@pytest.mark.parametrize(
    ("text", "budget", "lens"),
    [
        ("off", 0, [0, 0, 0, 0]),
        ("fixed(0)", 0, [0, 0, 0, 0]),
        ("fixed(1)", 4, [1, 1, 1, 1]),
        ("fixed(2)", 8, [2, 2, 2, 2]),
        ("fixed(9)", 12, [3, 3, 3, 3]),
        ("threshold(1)", 0, [0, 0, 0, 0]),
        ("threshold(0.5)", 3, [1, 1, 1, 0]),
        ("threshold(0.4)", 7, [3, 1, 3, 0]),
        ("threshold(0)", 12, [3, 3, 3, 3]),
        ("greedy-causal", 1, [1, 0, 0, 0]),
        ("ratio", 12, [3, 3, 3, 3]),
        ("throughput", 12, [3, 3, 3, 3]),
    ],
)
def test_built_in_decisions(text: str, budget: int, lens: list[int]) -> None:
    outcome = decide(step(), build_policy(text), TABLE.compile())
    assert (outcome.budget, outcome.verify_lens.tolist()) == (budget, lens)


@pytest.mark.parametrize("text", ["throughput", "ratio", "greedy-causal"])
def test_all_is_verified_without_a_model(text: str) -> None:
    two_sizes = CostModel({4: [1.0], 8: [100.0]}, 8).compile()
    outcome = decide(step(), build_policy(text), two_sizes)
    assert (outcome.budget, outcome.model_state.name) == (12, "NO_MODEL")
    assert outcome.expected_ms is None


@pytest.mark.parametrize(("text", "budget"), [("off", 0), ("fixed(1)", 4), ("threshold(0.5)", 3)])
def test_counting_policies_need_no_model(text: str, budget: int) -> None:
    outcome = decide(step(), build_policy(text), CostModel({}, 0).compile())
    assert (outcome.budget, outcome.model_state.name) == (budget, "NO_MODEL")


@pytest.mark.parametrize("text", ["throughput", "fixed(2)", "threshold(0)", "ratio"])
def test_the_cap_of_the_executor_binds_every_policy(text: str) -> None:
    outcome = decide(step(max_budget=5), build_policy(text), CostModel({}, 0).compile())
    assert outcome.budget == 5
    assert outcome.flags.name == "CAPPED"


def test_prefill_is_left_out_by_throughput_alone() -> None:
    """A chunk of 96 rows makes a draft look free to `ratio`."""
    sizes = {size: [1.0 + 0.1 * size] for size in range(4, 128, 4)}
    table = CostModel(sizes, 124).compile()
    inputs = step(num_other_tokens=100, num_prefill_tokens=96)
    alone = step(num_other_tokens=4)
    budgets = {
        text: decide(inputs, build_policy(text), table).budget for text in ("throughput", "ratio")
    }
    assert budgets["ratio"] > budgets["throughput"]
    assert budgets["throughput"] == decide(alone, build_policy("throughput"), table).budget


def test_weight_multiplies_gain_bonus_and_rank() -> None:
    inputs = step(weight=np.array([1.0, 1.0, 1.0, 10.0]), max_budget=3)
    outcome = decide(inputs, build_policy("threshold(0)"), TABLE.compile())
    assert outcome.verify_lens.tolist() == [1, 1, 0, 1]
    assert outcome.expected_tokens == pytest.approx(4 + 0.9 + 0.6 + 0.2)


def test_no_cap_is_the_default() -> None:
    assert step().max_budget == NO_CAP
