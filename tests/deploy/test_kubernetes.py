"""The manifests: rendered, valid for several versions of Kubernetes, with options that exist."""

from __future__ import annotations

import copy
import http.client
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest

from tests.certificates import Authority
from tests.deploy.command_lines import read_options
from tests.deploy.containerfile import read_targets
from tests.deploy.manifests import (
    FOLDER,
    OVERLAYS,
    Container,
    containers,
    find,
    pod_templates,
    render,
)
from tests.integration.processes import wait_until
from tests.integration.test_smg import free_port
from tests.repository import ROOT

VERSIONS = ("1.29", "1.33", "1.37")
AUTOSCALED = "autoscaled"
FIELDS = {"metadata.namespace": "specsched"}


@pytest.fixture(scope="module", params=OVERLAYS)
def objects(request: pytest.FixtureRequest):
    return render(FOLDER / "overlays" / request.param)


def executor_of(objects) -> dict:
    return find(objects, "StatefulSet", "specsched")


def ours(objects) -> list[Container]:
    return [
        each
        for _, template in pod_templates(objects)
        for each in containers(template)
        if each.spec["image"].startswith(("specsched/executor", "specsched/scheduler"))
        or each.name.startswith("slot-")
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_schemas_accept_every_object(objects, version: str) -> None:
    for each in objects:
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_schemas_refuse_what_is_wrong(objects, version: str) -> None:
    broken = copy.deepcopy(executor_of(objects))
    broken["spec"]["template"]["spec"]["initContainers"][0]["restartPolicies"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="restartPolicies"):
        kubernetes_validate.validate(broken, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_component_for_autoscaling_is_valid(tmp_path: Path, version: str) -> None:
    # Kustomize takes relative paths only.
    folder = tmp_path / AUTOSCALED
    folder.mkdir()
    there = Path(*[".."] * len(folder.parts[1:])) / FOLDER.relative_to("/")
    (folder / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [{there}/overlays/one-gpu]\ncomponents: [{there}/components/autoscaling]\n"
    )
    objects = render(folder)
    scaler = find(objects, "HorizontalPodAutoscaler", "specsched")
    kubernetes_validate.validate(scaler, version, strict=True)
    assert scaler["spec"]["scaleTargetRef"]["name"] == executor_of(objects)["metadata"]["name"]
    metrics = {each["pods"]["metric"]["name"]: each for each in scaler["spec"]["metrics"]}
    # The numbers of GetLoads, by the names that Prometheus has for them.
    catalogue = (ROOT / "executor/specsched_executor/telemetry/catalogue.py").read_text()
    for name in metrics:
        assert f"vllm:{name.removeprefix('vllm_')}" in catalogue
    seqs = read_executor(objects).max_num_seqs
    target = metrics["vllm_num_requests_running"]["pods"]["target"]["averageValue"]
    assert 0.6 * seqs <= int(target) <= 0.8 * seqs


# ===================== Options =====================


def read_executor(objects, tls: Path | None = None):
    (container,) = [each for each in ours(objects) if each.name == "executor"]
    environ = container.environment()
    environ.pop("SPECSCHED_EXECUTOR_MODEL", None)  # a path of the pod
    if tls is not None:
        environ = {name: v.replace("/etc/specsched/tls", str(tls)) for name, v in environ.items()}
    return read_options(container.arguments(), environ)


def as_secret(folder: Path, *names: str) -> Path:
    """A folder like a mounted secret of type kubernetes.io/tls."""
    files = Authority(folder).issue("tls", *names)
    files.certificate.rename(folder / "tls.crt")
    files.key.rename(folder / "tls.key")
    files.ca.rename(folder / "ca.crt")
    return folder


def test_options_exist(objects, tmp_path: Path) -> None:
    tls = as_secret(tmp_path)
    names = set()
    for container in ours(objects):
        if container.name == "executor":
            options = read_executor(objects, tls)
            assert options.num_threads == int(container.spec["resources"]["limits"]["cpu"])
        else:
            options = read_options(container.arguments(), container.environment())
            assert options.name == container.name
        assert options.run_dir == Path("/run/specsched/private")
        names.add(container.name)
    assert names == {"slot-a", "slot-b", "executor"}


def test_the_api_goes_beyond_the_pod_by_mutual_tls_or_where_a_policy_guards_it(
    objects, tmp_path: Path
) -> None:
    options = read_executor(objects, as_secret(tmp_path))
    assert (options.tls is None) == options.allow_plaintext
    policy = find(objects, "NetworkPolicy", "specsched")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels(executor_of(objects)).items()
    (rule,) = [r for r in policy["ingress"] if {"port": options.listen_address.port} in r["ports"]]
    (peer,) = rule["from"]
    gateway = find(objects, "Deployment", "specsched-gateway")
    assert peer["podSelector"]["matchLabels"].items() <= labels(gateway).items()
    assert (
        labels(executor_of(objects)).items() >= {"app.kubernetes.io/component": "executor"}.items()
    )


def labels(workload: dict) -> dict[str, str]:
    return workload["spec"]["template"]["metadata"]["labels"]


def test_probes_ask_what_the_processes_serve_on_the_pods_address(objects, tmp_path: Path) -> None:
    tls = as_secret(tmp_path)
    for container in ours(objects):
        options = (
            read_executor(objects, tls)
            if container.name == "executor"
            else read_options(container.arguments(), container.environment())
        )
        host, _, port = options.probe_address.rpartition(":")
        assert host == "0.0.0.0"
        ports = {each["name"]: each["containerPort"] for each in container.spec["ports"]}
        probes = {name: probe for name, probe in container.spec.items() if name.endswith("Probe")}
        assert "livenessProbe" in probes
        for name, probe in probes.items():
            path = "/livez" if name == "livenessProbe" else "/readyz"
            asked = probe["httpGet"]
            assert (asked["path"], ports[asked["port"]]) == (path, int(port)), name
        # A pod serves without any scheduler, and an idle slot is never ready.
        assert ("readinessProbe" in probes) == (container.name == "executor")
    ports = [p["containerPort"] for c in ours(objects) for p in c.spec["ports"]]
    assert len(ports) == len(set(ports))  # one network for all containers of a pod


# ===================== The pod =====================


def test_the_pod_has_two_slots_and_one_is_idle(objects) -> None:
    slots = executor_of(objects)["spec"]["template"]["spec"]["initContainers"]
    assert [each["name"] for each in slots] == ["slot-a", "slot-b"]
    assert all(each["restartPolicy"] == "Always" for each in slots)
    assert [each["image"].partition(":")[0] for each in slots] == [
        "specsched/scheduler",
        "specsched/idle",
    ]
    same = ("resources", "securityContext", "volumeMounts", "env")
    for key in same:  # of a live pod none of it can be changed
        assert slots[0][key] == slots[1][key], key


def test_a_changed_template_recreates_no_pod(objects) -> None:
    assert executor_of(objects)["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_the_run_directory_is_in_memory_and_one_users(objects) -> None:
    pod = executor_of(objects)["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "run"]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["runAsGroup"] > 0
    for container in containers({"spec": pod}):
        assert not {"runAsUser", "runAsGroup"} & container.spec["securityContext"].keys()
        mounts = {each["name"]: each["mountPath"] for each in container.spec["volumeMounts"]}
        run_dir = read_run_dir(container)
        # A directory of its own below the mount, which others of the pod could write.
        assert run_dir.parent == Path(mounts["run"])


def read_run_dir(container: Container) -> Path:
    (word,) = [each for each in container.spec["args"] if each.startswith("--run-dir=")]
    return Path(word.removeprefix("--run-dir="))


@pytest.mark.parametrize("overlay", ["one-gpu", "mtls"])
def test_every_container_gets_whole_cpus_of_its_own(overlay: str) -> None:
    objects = render(FOLDER / "overlays" / overlay)
    for container in containers(executor_of(objects)["spec"]["template"]):
        resources = container.spec["resources"]
        assert resources["requests"] == resources["limits"]  # quality of service: guaranteed
        assert int(resources["limits"]["cpu"]) >= 1


def test_there_is_time_to_drain(objects, tmp_path: Path) -> None:
    pod = executor_of(objects)["spec"]["template"]["spec"]
    drain_s = read_executor(objects, as_secret(tmp_path)).drain_timeout_s
    slots = [each for each in ours(objects) if each.name.startswith("slot-")]
    graces = [read_options(s.arguments(), s.environment()).shutdown_grace_ms / 1e3 for s in slots]
    # Sidecars end one after the other, and after the executor.
    assert pod["terminationGracePeriodSeconds"] > drain_s + 3 * sum(graces)


def test_disruptions_take_one_executor_at_a_time(objects) -> None:
    for name, workload in (
        ("specsched", executor_of(objects)),
        ("specsched-gateway", find(objects, "Deployment", "specsched-gateway")),
    ):
        budget = find(objects, "PodDisruptionBudget", name)["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"].items() <= labels(workload).items()


def test_pods_are_locked_down(objects) -> None:
    for _, template in pod_templates(objects):
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(template):
            context = container.spec["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


# ===================== Images =====================


def test_every_image_of_ours_has_a_recipe(objects) -> None:
    targets = read_targets()
    for _, template in pod_templates(objects):
        for container in containers(template):
            name, _, tag = container.spec["image"].partition(":")
            assert tag not in {"", "latest"}
            if name.startswith("specsched/"):
                assert name.removeprefix("specsched/") in targets


def test_the_idle_image_answers_probes_with_a_schedulers_arguments() -> None:
    target = read_targets()["idle"]
    assert ("COPY", "deploy/containers/idle.py /idle.py") in target.steps
    program, script = json.loads(target.last("ENTRYPOINT"))
    assert (program, script) == ("python", "/idle.py")
    objects = render(FOLDER / "overlays" / "cpu-demo")
    (slot,) = [each for each in ours(objects) if each.name == "slot-b"]
    port = free_port()
    arguments = [re.sub(r"0\.0\.0\.0:\d+", f"127.0.0.1:{port}", word) for word in slot.arguments()]
    idle = subprocess.Popen([sys.executable, ROOT / "deploy/containers/idle.py", *arguments])
    try:
        asked = {path: ask(port, path) for path in ("/livez", "/readyz", "/metrics", "/other")}
        assert asked == {"/livez": 200, "/readyz": 200, "/metrics": 200, "/other": 404}
        with socket.create_connection(("127.0.0.1", port)):  # which says nothing
            assert ask(port, "/livez") == 200
    finally:
        idle.terminate()
        assert idle.wait(60) == 0


def ask(port: int, path: str) -> int:
    """Status of the answer; waits for somebody who answers."""
    statuses: list[int] = []

    def answered() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("GET", path)
            statuses.append(connection.getresponse().status)
        except ConnectionRefusedError:
            return False
        finally:
            connection.close()
        return True

    wait_until(answered)
    return statuses[0]
