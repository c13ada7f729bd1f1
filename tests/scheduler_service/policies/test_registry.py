"""Policies: their text form, the registry, third-party entry points, how they fail."""

from __future__ import annotations

import inspect
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
    PolicyCode,
    StepView,
    decide,
)
from specsched_scheduler.policies import (
    Parameter,
    PolicyChoice,
    PolicyError,
    PolicyFailedError,
    PolicySpec,
    available_policies,
    build_policy,
    registry,
)

from tests.scheduler_service.policies.steps import TABLE, step

# ===================== Text =====================


@pytest.mark.parametrize(
    ("text", "shown", "parameter"),
    [
        ("throughput", "throughput", 0.0),
        (" off ", "off", 0.0),
        ("ratio()", "ratio", 0.0),
        ("fixed(3)", "fixed(k=3)", 3.0),
        ("fixed(k=0)", "fixed(k=0)", 0.0),
        ("fixed( k = 2 )", "fixed(k=2)", 2.0),
        ("threshold(0.3)", "threshold(p=0.3)", 0.3),
        ("threshold(p=1e-3)", "threshold(p=0.001)", 1e-3),
        ("throughput(fairness=0)", "throughput", 0.0),
        ("throughput(1)", "throughput(fairness=1)", 0.0),
        ("slo(5)", "slo(step_ms=5)", 0.0),
        ("slo(5, 0, 0.5)", "slo(fairness=0.5, step_ms=5)", 0.0),
        (
            "slo(min_tokens_per_second=50)",
            "slo(min_tokens_per_second=50, step_ms=0)",
            0.0,
        ),
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
        ("fixed(-1)", "policy fixed: k = -1 must be an integer in 0..64"),
        ("fixed(65)", "policy fixed: k = 65 must be an integer in 0..64"),
        ("fixed(1.5)", "policy fixed: k = 1.5 must be an integer in 0..64"),
        ("slo", "policy slo: step_ms = 0 and min_tokens_per_second = 0 bind nothing"),
        ("slo(-1)", "policy slo: step_ms = -1 must be a number in 0..1000000"),
        ("throughput(fairness=5)", "policy throughput: fairness = 5 must be a number in 0..4"),
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


class Raising:
    parameters = ()

    def decide(self, step: StepView) -> PolicyChoice:
        return PolicyChoice(self._share(step, step.num_drafts()))

    def _share(self, step: StepView, of: int) -> int:
        return of // int(step.price(np.array([0], dtype=np.int64))[0] * 0.0)


class Misspelt:
    parameters = ()

    def decide(self, step: StepView) -> PolicyChoice:
        return PolicyChoice(step.num_drafts("all"))  # type: ignore[arg-type]


class Unbuilt:
    parameters = ()

    def __init__(self) -> None:
        raise OSError("no table\nof mine")

    def decide(self, step: StepView) -> PolicyChoice:
        return PolicyChoice(0)


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
    for policy in (
        Half,
        Greedy,
        Negative,
        Careless,
        Raising,
        Misspelt,
        Unbuilt,
        NoDecide,
        NoParameters,
    ):
        setattr(module, policy.__name__, policy)
    monkeypatch.setitem(sys.modules, "somebody", module)
    return declare


def test_third_party_policy_decides(install: Install) -> None:
    install(half="somebody:Half")
    assert available_policies()[-1] == "half"
    policy = build_policy("half(0.25)")
    assert policy.rule.code == PolicyCode.PYTHON
    assert (str(policy), str(build_policy("half"))) == ("half(share=0.25)", "half(share=0.5)")
    assert decide(step(), policy, TABLE.compile()).budget == 3


def test_third_party_budget_is_cut_to_the_drafts_present(install: Install) -> None:
    install(greedy="somebody:Greedy")
    outcome = decide(step(), build_policy("greedy"), TABLE.compile())
    assert (outcome.budget, outcome.verify_lens.tolist()) == (8, [2, 2, 2, 2])


@pytest.mark.parametrize(("name", "given"), [("Negative", "budget=-1"), ("Careless", "decided 3")])
def test_third_party_nonsense_is_an_error(install: Install, name: str, given: str) -> None:
    install(odd=f"somebody:{name}")
    with pytest.raises(PolicyFailedError, match=f"policy odd .*{given}"):
        decide(step(), build_policy("odd"), TABLE.compile())


def test_an_error_of_a_policy_tells_the_place_in_its_own_code(install: Install) -> None:
    install(odd="somebody:Raising")
    line = inspect.getsourcelines(Raising._share)[1] + 1
    with pytest.raises(PolicyFailedError) as failed:
        decide(step(), build_policy("odd"), TABLE.compile())
    assert str(failed.value).startswith("policy odd raised ZeroDivisionError: ")
    assert str(failed.value).endswith(f"({__file__}:{line})")
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


def test_an_error_inside_what_a_policy_calls_is_told_by_the_line_that_calls(
    install: Install,
) -> None:
    install(odd="somebody:Misspelt")
    line = inspect.getsourcelines(Misspelt.decide)[1] + 1
    with pytest.raises(PolicyFailedError, match="raised ") as failed:
        decide(step(), build_policy("odd"), TABLE.compile())
    assert str(failed.value).endswith(f"({__file__}:{line})")


def test_a_policy_that_cannot_be_built_says_why_in_one_line(install: Install) -> None:
    install(odd="somebody:Unbuilt")
    with pytest.raises(PolicyError, match=r"policy odd cannot be built: OSError: no table of mine"):
        build_policy("odd")


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
