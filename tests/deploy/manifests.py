"""The overlays as `kubectl kustomize` renders them, and what their containers are started with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.repository import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
_REFERENCE = re.compile(r"\$\((\w+)\)")


def needs_kubectl() -> None:
    if shutil.which("kubectl") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("kubectl is missing")
        pytest.skip("needs kubectl")


def kubectl(*arguments: str | Path, stdin: str = "") -> str:
    done = subprocess.run(
        ["kubectl", *arguments],
        check=False,
        capture_output=True,
        text=True,
        input=stdin,
        env={**os.environ, "KUBECONFIG": "/dev/null"},
    )
    assert done.returncode == 0, done.stderr
    assert "arning" not in done.stderr, done.stderr
    return done.stdout


@cache
def render_text(folder: Path) -> str:
    needs_kubectl()
    return kubectl("kustomize", folder)


def render(folder: Path) -> list[dict[str, Any]]:
    """The objects of a folder, each time new ones."""
    return [item for item in yaml.safe_load_all(render_text(folder)) if item]


def find(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


@dataclass(frozen=True)
class Container:
    """A container of a pod template."""

    spec: dict[str, Any]
    pod: dict[str, Any]

    @property
    def name(self) -> str:
        return self.spec["name"]

    def environment(self, fields: Mapping[str, str] | None = None) -> dict[str, str]:
        """fields: values of fieldRef by their path."""
        return {each["name"]: self._value(each, fields or {}) for each in self.spec.get("env", [])}

    def arguments(self, fields: Mapping[str, str] | None = None) -> list[str]:
        environment = self.environment(fields)
        return [_REFERENCE.sub(lambda m: environment[m[1]], word) for word in self.spec["args"]]

    def _value(self, variable: dict[str, Any], fields: Mapping[str, str]) -> str:
        if "value" in variable:
            return variable["value"]
        source = variable["valueFrom"]
        if "fieldRef" in source:
            return fields[source["fieldRef"]["fieldPath"]]
        reference = source["resourceFieldRef"]
        assert reference["containerName"] == self.name
        kind, resource = reference["resource"].split(".")
        return str(int(self.spec["resources"][kind][resource]))  # whole CPUs


def containers(template: dict[str, Any]) -> Iterator[Container]:
    """Those of a pod template, sidecars first."""
    pod = template["spec"]
    for spec in [*pod.get("initContainers", []), *pod["containers"]]:
        yield Container(spec, pod)


def pod_templates(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in objects:
        if each["kind"] in {"StatefulSet", "Deployment"}:
            yield each["metadata"]["name"], each["spec"]["template"]
