"""The upgrade script, step by step, with the real kubectl against stored API objects."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import kubernetes_validate
import pytest

from tests.deploy import manifests
from tests.deploy.fake_cluster import FOLDER, IDLE, NEW, OLD, FakeCluster, serve

SCRIPT = manifests.FOLDER / "upgrade.py"


@pytest.fixture(scope="module")
def upgrade() -> ModuleType:
    manifests.needs_kubectl()
    spec = importlib.util.spec_from_file_location("specsched_upgrade", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(SCRIPT.parent))  # as for a script that is run
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return module


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with serve(FakeCluster(tmp_path / "cache")) as served:
        yield served


def run(upgrade: ModuleType, cluster: FakeCluster, *arguments: str) -> int:
    return upgrade.main(arguments, cluster.kubectl, cluster.sleep)


def images(cluster: FakeCluster) -> list[dict[str, str]]:
    return [pod.images() for pod in cluster.pods.values()]


UPGRADED = {"slot-a": IDLE, "slot-b": NEW}
AS_BEFORE = {"slot-a": OLD, "slot-b": IDLE}


def test_it_shadows_is_promoted_and_becomes_permanent(
    upgrade: ModuleType, cluster: FakeCluster
) -> None:
    assert run(upgrade, cluster, NEW) == 0
    for pod in cluster.pods.values():
        # The old one is made idle once the new one is followed, never before.
        assert pod.log[2:] == [f"slot-b = {NEW}", "promote slot-b", f"slot-a = {IDLE}"]
        assert (list(pod.lanes), pod.active) == (["slot-b"], "slot-b")
        assert pod.images() == UPGRADED
    assert cluster.template_images == UPGRADED
    # And back into slot-a, the next time.
    assert run(upgrade, cluster, "specsched/scheduler:0.3.0") == 0
    expected = {"slot-a": "specsched/scheduler:0.3.0", "slot-b": IDLE}
    assert images(cluster) == [expected, expected]
    assert cluster.template_images == expected


@pytest.mark.parametrize(("verb", "expected"), [("--rollback", AS_BEFORE), ("--finish", UPGRADED)])
def test_the_old_one_may_go_on_as_a_shadow(
    upgrade: ModuleType, cluster: FakeCluster, verb: str, expected: dict[str, str]
) -> None:
    assert run(upgrade, cluster, NEW, "--keep-old") == 0
    assert images(cluster) == [{"slot-a": OLD, "slot-b": NEW}] * 2
    assert [pod.active for pod in cluster.pods.values()] == ["slot-b"] * 2
    assert cluster.template_images == AS_BEFORE
    assert run(upgrade, cluster, verb) == 0
    assert images(cluster) == [expected] * 2
    assert [len(pod.lanes) for pod in cluster.pods.values()] == [1, 1]
    assert cluster.template_images == expected


@pytest.mark.parametrize(
    ("tag", "told"),
    [
        ("crashes", r"not within 60 s: specsched-0: slot-b runs specsched/scheduler:crashes"),
        ("faulty", r"slot-b made 1200 faulty decisions and 3000 sound ones"),
        ("silent", r"slot-b made 0 decisions, fewer than --min-decisions 100: is there load"),
    ],
)
def test_a_new_one_that_is_no_good_is_taken_back_and_no_other_pod_touched(
    upgrade: ModuleType, cluster: FakeCluster, tag: str, told: str, capsys
) -> None:
    image = f"specsched/scheduler:{tag}"
    assert run(upgrade, cluster, image, "--timeout-s", "60") == 1
    assert told in capsys.readouterr().err
    first, second = cluster.pods.values()
    assert (first.images(), first.active, list(first.lanes)) == (AS_BEFORE, "slot-a", ["slot-a"])
    assert f"slot-b = {image}" in first.log
    assert len(second.log) == 2
    assert cluster.template_images == AS_BEFORE


def test_nothing_is_begun_where_it_cannot_end(
    upgrade: ModuleType, cluster: FakeCluster, capsys
) -> None:
    (pod, _) = cluster.pods.values()
    for condition in pod.stored["status"]["conditions"]:
        condition["status"] = "False"
    assert run(upgrade, cluster, NEW) == 1
    assert "specsched-0 is not ready" in capsys.readouterr().err
    for condition in pod.stored["status"]["conditions"]:
        condition["status"] = "True"

    pod.patch({"spec": {"initContainers": [{"name": "slot-b", "image": OLD}]}})
    assert run(upgrade, cluster, NEW) == 1
    assert "one slot must be idle, and 0 are" in capsys.readouterr().err
    pod.patch({"spec": {"initContainers": [{"name": "slot-b", "image": IDLE}]}})

    pod.lanes.clear()
    assert run(upgrade, cluster, NEW) == 1
    assert "slot-a must be followed, but it is nobody" in capsys.readouterr().err
    assert images(cluster) == [AS_BEFORE] * 2

    assert run(upgrade, cluster, "--rollback") == 1
    assert "a shadow is missing" in capsys.readouterr().err


def test_a_template_whose_change_would_recreate_pods_is_left_alone(
    upgrade: ModuleType, cluster: FakeCluster, capsys
) -> None:
    cluster.workload["spec"]["updateStrategy"] = {"type": "RollingUpdate"}
    assert run(upgrade, cluster, NEW) == 1
    assert "would recreate pods" in capsys.readouterr().err
    assert cluster.template_images == AS_BEFORE


@pytest.mark.parametrize(
    ("image", "is_idle"),
    [
        ("specsched/idle:0.1.0", True),
        ("registry.example:5000/specsched/idle@sha256:abc", True),
        ("idle", True),
        ("specsched/idler:1", False),
        ("idle/scheduler:1", False),
        ("registry.example:5000/scheduler", False),
    ],
)
def test_idle_images_are_told_by_their_name(upgrade: ModuleType, image: str, is_idle: bool) -> None:
    assert upgrade.is_idle(image) == is_idle


# ===================== What all this stands on =====================


def test_stored_objects_are_those_of_the_overlay() -> None:
    rendered = manifests.render(manifests.FOLDER / "overlays" / "one-gpu")
    wanted = manifests.find(rendered, "StatefulSet", "specsched")
    stored = json.loads((FOLDER / "statefulset.json").read_text())
    assert_contains(stored, wanted)
    for number in range(2):
        pod = json.loads((FOLDER / f"pod-{number}.json").read_text())
        assert_contains(pod["spec"], wanted["spec"]["template"]["spec"])
        kubernetes_validate.validate(pod, "1.33", strict=True)


def assert_contains(stored: object, wanted: object) -> None:
    """Everything wanted is stored as it is; a server adds defaults."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            assert_contains(stored[key], value)
    elif isinstance(wanted, list):
        assert len(stored) == len(wanted)
        for mine, theirs in zip(stored, wanted, strict=True):
            assert_contains(mine, theirs)
    else:
        assert stored == wanted


def test_patches_are_applied_as_kubectl_applies_them(cluster: FakeCluster) -> None:
    pod = cluster.pods["specsched-0"]
    patch = {"spec": {"initContainers": [{"name": "slot-b", "image": NEW}]}}
    local = manifests.kubectl(
        *("patch", "--local", "--filename", "-", "--type", "strategic"),
        *("--patch", json.dumps(patch), "--output", "json"),
        stdin=json.dumps(pod.stored),
    )
    merged = {c["name"]: c for c in json.loads(local)["spec"]["initContainers"]}
    pod.patch(patch)
    assert merged == {c["name"]: c for c in pod.stored["spec"]["initContainers"]}


def test_of_a_live_pod_nothing_but_images_can_be_changed(cluster: FakeCluster) -> None:
    patch = {"spec": {"initContainers": [{"name": "slot-b", "args": ["scheduler"]}]}}
    words = ("patch", "pod", "specsched-0", "--type", "strategic", "--patch", json.dumps(patch))
    with pytest.raises(AssertionError, match="may not change fields other than"):
        cluster.kubectl(["--namespace=specsched", *words])
