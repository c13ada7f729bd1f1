"""A cluster as far as the upgrade script sees it: an API server, kubelets, executors' lanes.

The API server answers the real kubectl over HTTP. Its objects (api_objects/) are those of the
overlay one-gpu as a server stores them, defaults and status included. It enforces the rule that the
slots follow from: of a live pod's containers nothing but the image may be changed.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from specsched_client.cli._lane_views import print_lanes
from specsched_protocol.v1 import executor_pb2

FOLDER = Path(__file__).with_name("api_objects")
PODS = "/api/v1/namespaces/specsched/pods"
STATEFULSETS = "/apis/apps/v1/namespaces/specsched/statefulsets"
OLD, NEW, IDLE = "specsched/scheduler:0.1.0", "specsched/scheduler:0.2.0", "specsched/idle:0.1.0"


def merge(target: Any, patch: Any) -> Any:
    """A strategic merge, for lists of named containers and for maps."""
    if isinstance(target, dict) and isinstance(patch, dict):
        return {**target, **{key: merge(target.get(key), each) for key, each in patch.items()}}
    if isinstance(target, list) and all(isinstance(each, dict) for each in patch):
        changes = {each["name"]: each for each in patch}
        return [merge(each, changes.get(each["name"], {})) for each in target]
    return patch


class Pod:
    """A pod, its kubelet, and the lanes of its executor."""

    def __init__(self, stored: dict[str, Any]) -> None:
        self.stored = stored
        self.active = ""
        self.lanes: dict[str, executor_pb2.AttachedScheduler] = {}
        self.log: list[str] = []
        for slot, image in self.images().items():
            self._start(slot, image)

    def images(self) -> dict[str, str]:
        return {each["name"]: each["image"] for each in self.stored["spec"]["initContainers"]}

    def patch(self, patch: dict[str, Any]) -> str | None:
        """Apply; the reason where it is refused."""
        before, after = self.stored, merge(self.stored, patch)
        frozen = copy.deepcopy(after)
        for was, now in zip(
            before["spec"]["initContainers"], frozen["spec"]["initContainers"], strict=True
        ):
            now["image"] = was["image"]
        if frozen != before:
            return "pod updates may not change fields other than `spec.initContainers[*].image`"
        old = self.images()
        self.stored = after
        for slot, image in self.images().items():
            if image != old[slot]:
                self._end(slot)
                self._start(slot, image)
        return None

    def promote(self, slot: str) -> None:
        for name, lane in self.lanes.items():
            lane.active = name == slot
        self.active = slot
        self.log.append(f"promote {slot}")

    def pass_time(self, seconds: float) -> None:
        """Steps go by, fifty a second; each scheduler decides as its image does."""
        for slot, lane in self.lanes.items():
            image = self.images()[slot]
            if not image.endswith(":silent"):
                lane.comparison.num_sound_decisions += int(50 * seconds)
            if image.endswith(":faulty"):
                lane.comparison.num_faults["late"] += int(20 * seconds)

    def answer(self) -> executor_pb2.ListSchedulersResponse:
        return executor_pb2.ListSchedulersResponse(schedulers=self.lanes.values())

    def _end(self, slot: str) -> None:
        self.lanes.pop(slot, None)
        if self.active == slot:  # whoever shadows takes over
            self.active = next(iter(self.lanes), "")
            for name, lane in self.lanes.items():
                lane.active = name == self.active

    def _start(self, slot: str, image: str) -> None:
        self.log.append(f"{slot} = {image}")
        (status,) = [s for s in self.stored["status"]["initContainerStatuses"] if s["name"] == slot]
        crashes = image.endswith(":crashes")
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        status["state"] = waiting if crashes else {"running": {"startedAt": "2026-11-30T05:00:00Z"}}
        if not crashes and not image.startswith("specsched/idle:"):
            self.lanes[slot] = executor_pb2.AttachedScheduler(name=slot, active=not self.active)
            self.active = self.active or slot


class FakeCluster:
    """Objects, kubelets and what kubectl is told of them."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self.workload = json.loads((FOLDER / "statefulset.json").read_text())
        stored = [json.loads((FOLDER / f"pod-{number}.json").read_text()) for number in range(2)]
        self.pods = {each["metadata"]["name"]: Pod(each) for each in stored}
        self.server = ""

    @property
    def template_images(self) -> dict[str, str]:
        slots = self.workload["spec"]["template"]["spec"]["initContainers"]
        return {each["name"]: each["image"] for each in slots}

    def sleep(self, seconds: float) -> None:
        for pod in self.pods.values():
            pod.pass_time(seconds)

    def kubectl(self, arguments: Sequence[str]) -> str:
        """The real one; what it would have executed in a container is answered here."""
        if arguments[1] == "exec":
            return self._execute(arguments)
        environ = {**os.environ, "KUBECONFIG": "/dev/null", "KUBECACHEDIR": str(self._cache)}
        done = subprocess.run(
            ["kubectl", f"--server={self.server}", *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=environ,
        )
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def _execute(self, arguments: Sequence[str]) -> str:
        _, verb, name, flag, container, dashes, program, *words = arguments
        expected = ("exec", "--container", "executor", "--", "specsched")
        assert (verb, flag, container, dashes, program) == expected
        pod = self.pods[name]
        match words:
            case ["lanes", "--json"]:
                shown = io.StringIO()
                with contextlib.redirect_stdout(shown):
                    print_lanes(pod.answer(), as_json=True)
                return shown.getvalue()
            case ["promote", slot]:
                assert slot in pod.lanes, f"{slot} is not attached"
                pod.promote(slot)
                return ""
        raise AssertionError(words)

    # ===================== The API server =====================

    def get(self, path: str) -> dict[str, Any] | None:
        path, _, query = path.partition("?")
        folder, _, name = path.rpartition("/")
        if path == PODS:
            assert "app.kubernetes.io%2Fcomponent%3Dexecutor" in query
            items = [pod.stored for pod in self.pods.values()]
            return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
        if folder == PODS:
            return self.pods[name].stored
        if folder == STATEFULSETS:
            return self.workload
        return DISCOVERY.get(path)

    def patch(self, path: str, patch: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        folder, _, name = path.partition("?")[0].rpartition("/")
        if folder == STATEFULSETS:
            self.workload = merge(self.workload, patch)
            return 200, self.workload
        reason = self.pods[name].patch(patch)
        if reason is None:
            return 200, self.pods[name].stored
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason}
        return 422, {**status, "reason": "Invalid", "code": 422}


def _resource(name: str, kind: str, short: str) -> dict[str, Any]:
    verbs = ["get", "list", "patch"]
    singular = kind.lower()
    names = {"name": name, "singularName": singular, "shortNames": [short]}
    return {**names, "namespaced": True, "kind": kind, "verbs": verbs}


_APPS = {"groupVersion": "apps/v1", "version": "v1"}
DISCOVERY: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": "apps", "versions": [_APPS], "preferredVersion": _APPS}],
    },
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [_resource("pods", "Pod", "po")],
    },
    "/apis/apps/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "apps/v1",
        "resources": [_resource("statefulsets", "StatefulSet", "sts")],
    },
}


@contextmanager
def serve(cluster: FakeCluster) -> Iterator[FakeCluster]:
    """Answer kubectl until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = cluster.get(self.path)
            self._answer(200 if found else 404, found or {"kind": "Status", "status": "Failure"})

        def do_PATCH(self) -> None:
            assert self.headers["Content-Type"] == "application/strategic-merge-patch+json"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(*cluster.patch(self.path, json.loads(body)))

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            payload = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cluster.server = f"http://127.0.0.1:{server.server_port}"
        try:
            yield cluster
        finally:
            server.shutdown()
