"""What upgrade.py asks of the API server and of the pods, through kubectl. Standard library."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

SLOTS = ("slot-a", "slot-b")
_PERIOD_S = 2.0


class UpgradeError(Exception):
    """The upgrade ends here; the message says where and why."""


@dataclass(frozen=True)
class Options:
    """namespace, name: of the StatefulSet. shadow_s: how long a new scheduler shadows at least.

    min_decisions: sound decisions it makes in that time at least, if the pod has that many steps.
    """

    namespace: str
    name: str
    shadow_s: float
    min_decisions: int
    timeout_s: float
    keep_old: bool


Kubectl = Callable[[Sequence[str]], str]
"""Runs kubectl with these arguments; returns what it prints. Raises UpgradeError."""


def run_kubectl(arguments: Sequence[str]) -> str:
    """The real one."""
    done = subprocess.run(["kubectl", *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise UpgradeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Cluster:
    """What the upgrade asks of the API and of the pods. sleep: as in `time`."""

    kubectl: Kubectl
    options: Options
    sleep: Callable[[float], None] = time.sleep

    def workload(self) -> dict[str, Any]:
        return self._get("statefulset", self.options.name)

    def pods(self) -> list[str]:
        """Names of the StatefulSet's pods, in their order."""
        selector = self.workload()["spec"]["selector"]["matchLabels"]
        labels = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
        items = self._get("pods", "--selector", labels)["items"]
        names = [each["metadata"]["name"] for each in items]
        return sorted(names, key=lambda name: int(name.rpartition("-")[2]))

    def pod(self, name: str) -> dict[str, Any]:
        return self._get("pod", name)

    def set_images(self, kind: str, name: str, images: dict[str, str]) -> None:
        """Change the images of slots: of a live pod, or of the template."""
        slots = [{"name": slot, "image": image} for slot, image in images.items()]
        patch: dict[str, Any] = {"spec": {"initContainers": slots}}
        if kind == "statefulset":
            patch = {"spec": {"template": patch}}
        self._kubectl("patch", kind, name, "--type", "strategic", "--patch", json.dumps(patch))

    def lanes(self, pod: str) -> dict[str, dict[str, Any]]:
        """The schedulers that the pod's executor is attached to, by name."""
        answer = json.loads(self._exec(pod, "specsched", "lanes", "--json"))
        return {each["name"]: each for each in answer.get("schedulers", [])}

    def promote(self, pod: str, slot: str) -> None:
        self._exec(pod, "specsched", "promote", slot)

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Poll until it holds; UpgradeError, saying what did not come, after the time-out."""
        for _ in range(max(1, int(self.options.timeout_s / _PERIOD_S))):
            if condition():
                return
            self.sleep(_PERIOD_S)
        raise UpgradeError(f"not within {self.options.timeout_s:.0f} s: {what}")

    def _exec(self, pod: str, *command: str) -> str:
        return self._kubectl("exec", pod, "--container", "executor", "--", *command)

    def _get(self, *what: str) -> dict[str, Any]:
        got: dict[str, Any] = json.loads(self._kubectl("get", *what, "--output", "json"))
        return got

    def _kubectl(self, verb: str, *arguments: str) -> str:
        return self.kubectl([f"--namespace={self.options.namespace}", verb, *arguments])


def images(pod: dict[str, Any]) -> dict[str, str]:
    """Image of each slot, of a pod or of a template."""
    slots = {each["name"]: each["image"] for each in pod["spec"]["initContainers"]}
    return {slot: slots[slot] for slot in SLOTS}


def is_idle(image: str) -> bool:
    """Whether it is the image that stands in for a scheduler: its repository ends with idle."""
    repository = image.partition("@")[0]
    head, _, last = repository.rpartition("/")
    return last.partition(":")[0] == "idle" and bool(head or last)
