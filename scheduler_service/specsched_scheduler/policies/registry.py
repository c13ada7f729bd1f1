"""From a policy's name to something that decides: built-ins, then entry points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import cast

import numpy as np

from specsched_scheduler.decision.codes import PolicyCode
from specsched_scheduler.decision.errors import PolicyError, PolicyFailedError
from specsched_scheduler.decision.reference import StepView
from specsched_scheduler.decision.step import PolicyRule
from specsched_scheduler.policies.base import Parameter, Policy, PolicyChoice, PolicyFactory
from specsched_scheduler.policies.builtin import BUILT_IN, BuiltIn
from specsched_scheduler.policies.failure import raised_by
from specsched_scheduler.policies.spec import PolicySpec

__all__ = ["ENTRY_POINT_GROUP", "BuiltPolicy", "available_policies", "build_policy"]

ENTRY_POINT_GROUP = "specsched.policies"


@dataclass(frozen=True, slots=True)
class BuiltPolicy:
    """A policy ready to decide.

    spec: its name and its parameters by name, without quiet ones at their default. rule: what the
    compiled decision runs; its code is PolicyCode.PYTHON for a policy of an entry point, which only
    `decide` can run.
    """

    spec: PolicySpec
    rule: PolicyRule
    policy: Policy

    def decide(self, step: StepView) -> PolicyChoice:
        """The policy's choice; PolicyFailedError where it raises or it is not one."""
        try:
            choice = self.policy.decide(step)
        except Exception as error:
            told = raised_by(error, type(self.policy).__module__)
            raise PolicyFailedError(f"policy {self} raised {told}") from error
        if not _is_choice(choice):
            wanted = "a PolicyChoice of integers of at least 0"
            raise PolicyFailedError(f"policy {self} decided {choice!r}, not {wanted}")
        return choice

    def __str__(self) -> str:
        return str(self.spec)


def _is_choice(choice: object) -> bool:
    """Whether a policy's answer can be carried out."""
    return (
        isinstance(choice, PolicyChoice)
        and _is_count(choice.budget)
        and (choice.max_verify_len is None or _is_count(choice.max_verify_len))
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and int(value) >= 0


def available_policies() -> tuple[str, ...]:
    """Names that `build_policy` knows, built-ins first. Imports no third-party code."""
    others = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)} - set(BUILT_IN)
    return (*BUILT_IN, *sorted(others))


def build_policy(policy: PolicySpec | str) -> BuiltPolicy:
    """Build a policy from its text or spec.

    Built-in names cannot be replaced by entry points. Raises PolicyError naming the value and what
    is accepted: an unknown policy or parameter, a value out of range, an entry point that fails.
    """
    spec = PolicySpec.parse(policy) if isinstance(policy, str) else policy
    factory = _find(spec.name)
    declared = factory.parameters
    parameters = _bind(spec, declared)
    shown = {
        one.name: parameters[one.name]
        for one in declared
        if not one.is_quiet or parameters[one.name] != one.default
    }
    bound = PolicySpec(spec.name, shown)
    is_built_in = spec.name in BUILT_IN
    built = factory(**parameters) if is_built_in else _build(bound, factory, parameters)
    rule = cast("BuiltIn", built).rule if is_built_in else PolicyRule(int(PolicyCode.PYTHON))
    return BuiltPolicy(bound, rule, built)


def _find(name: str) -> PolicyFactory:
    if name in BUILT_IN:
        return cast("PolicyFactory", BUILT_IN[name])
    points = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == name]
    if not points:
        raise PolicyError(f"policy {name!r} is unknown; known: {', '.join(available_policies())}")
    if len(points) > 1:
        values = ", ".join(point.value for point in points)
        raise PolicyError(f"policy {name!r} is declared more than once: {values}")
    return _load(points[0])


def _load(point: EntryPoint) -> PolicyFactory:
    where = f"entry point {ENTRY_POINT_GROUP}: {point.name} = {point.value}"
    try:
        factory = point.load()
    except Exception as error:
        raise PolicyError(f"{where} cannot be imported: {error!r}") from error
    declared = getattr(factory, "parameters", None)
    if not isinstance(declared, tuple) or not all(isinstance(one, Parameter) for one in declared):
        raise PolicyError(f"{where}: `parameters` = {declared!r} must be a tuple of Parameter")
    if not callable(getattr(factory, "decide", None)):
        raise PolicyError(f"{where} has no method `decide(step)`")
    return cast("PolicyFactory", factory)


def _build(spec: PolicySpec, factory: PolicyFactory, parameters: Mapping[str, float]) -> Policy:
    """Of third-party code: whatever it raises is a PolicyError, its own are passed on."""
    try:
        return factory(**parameters)
    except PolicyError:
        raise
    except Exception as error:
        told = raised_by(error, factory.__module__)
        raise PolicyError(f"policy {spec} cannot be built: {told}") from error


def _bind(spec: PolicySpec, declared: tuple[Parameter, ...]) -> Mapping[str, float]:
    """Every declared parameter by name, checked."""
    names = [parameter.name for parameter in declared]
    accepted = f"accepted: {', '.join(names) or 'no parameters'}"
    if len(spec.values) > len(names):
        raise PolicyError(f"policy {spec}: {len(spec.values)} values given; {accepted}")
    given = dict(zip(names, spec.values, strict=False))
    for name, value in spec.parameters.items():
        if name not in names:
            raise PolicyError(f"policy {spec.name}: unknown parameter {name!r}; {accepted}")
        if name in given:
            raise PolicyError(f"policy {spec.name}: parameter {name} is given twice")
        given[name] = value
    return {one.name: one.check(spec.name, _value_of(spec, one, given)) for one in declared}


def _value_of(spec: PolicySpec, parameter: Parameter, given: Mapping[str, float]) -> float:
    value = given.get(parameter.name, parameter.default)
    if value is None:
        raise PolicyError(
            f"policy {spec.name} needs its parameter {parameter.name}, "
            f"e.g. {spec.name}({parameter.name}=1)"
        )
    return value
