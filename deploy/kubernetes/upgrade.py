#!/usr/bin/env python3
"""Upgrade the schedulers of a StatefulSet of executors, pod by pod, without recreating a pod.

    upgrade.py IMAGE              in each pod: IMAGE into the idle slot, let it shadow, promote it,
                                  make the other slot idle; then write it into the template
    upgrade.py IMAGE --keep-old   the same, but the old scheduler goes on as a shadow; after that
    upgrade.py --finish           make the shadows idle and write the template, or
    upgrade.py --rollback         promote the shadows, make the other slots idle

A pod whose new scheduler does not serve, or decides badly while it shadows, gets the idle image
back; the script ends there with status 1, and the pods after it are as they were. The template
changes last, and recreates nothing (updateStrategy OnDelete): it is for pods that are made later.

Needs kubectl with the rights to get and patch pods and StatefulSets and to exec in pods, and
upgrade_cluster.py beside it. Standard library only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from upgrade_cluster import (
    SLOTS,
    Cluster,
    Kubectl,
    Options,
    UpgradeError,
    images,
    is_idle,
    run_kubectl,
)


def check(cluster: Cluster, pod: str) -> tuple[str, str]:
    """(slot that is followed, slot that is idle) of a pod that can be upgraded.

    Raises UpgradeError, before anything was changed, for one that cannot.
    """
    got = cluster.pod(pod)
    ready = {each["type"]: each["status"] for each in got["status"].get("conditions", [])}
    if ready.get("Ready") != "True":
        raise UpgradeError(f"{pod} is not ready")
    idle = [slot for slot, image in images(got).items() if is_idle(image)]
    if len(idle) != 1:
        raise UpgradeError(f"{pod}: one slot must be idle, and {len(idle)} are: {images(got)}")
    active = [name for name, lane in cluster.lanes(pod).items() if lane.get("active")]
    other = SLOTS[1 - SLOTS.index(idle[0])]
    if active != [other]:
        raise UpgradeError(f"{pod}: {other} must be followed, but it is {active or 'nobody'}")
    return other, idle[0]


def runs(pod: dict[str, Any], slot: str, image: str) -> bool:
    """Whether the slot's container runs, with this image in its specification."""
    statuses = pod["status"].get("initContainerStatuses", [])
    is_running = any(each["name"] == slot and "running" in each["state"] for each in statuses)
    return is_running and images(pod)[slot] == image


def num_sound(lane: dict[str, Any]) -> int:
    """Sound decisions of a shadow (JSON has 64-bit numbers as text)."""
    return int(lane.get("comparison", {}).get("num_sound_decisions", 0))


def num_faults(lane: dict[str, Any]) -> int:
    """Decisions that were late, torn or impossible."""
    return sum(int(count) for count in lane.get("comparison", {}).get("num_faults", {}).values())


def shadow(cluster: Cluster, pod: str, slot: str, image: str) -> None:
    """Wait until the slot shadows with `image`, then watch it decide. Raises UpgradeError."""
    cluster.wait(f"{pod}: {slot} runs {image}", lambda: runs(cluster.pod(pod), slot, image))
    cluster.wait(
        f"{pod}: {slot} shadows", lambda: not cluster.lanes(pod).get(slot, {}).get("active", True)
    )
    before = cluster.lanes(pod)[slot]
    cluster.sleep(cluster.options.shadow_s)
    after = cluster.lanes(pod).get(slot)
    if after is None:
        raise UpgradeError(f"{pod}: {slot} went away while it shadowed")
    sound = num_sound(after) - num_sound(before)
    faults = num_faults(after) - num_faults(before)
    say(f"{pod}: {slot} made {sound} sound decisions and {faults} faulty ones")
    if faults * 100 > sound + faults:
        raise UpgradeError(f"{pod}: {slot} made {faults} faulty decisions and {sound} sound ones")
    if sound < cluster.options.min_decisions:
        raise UpgradeError(
            f"{pod}: {slot} made {sound} decisions, fewer than --min-decisions"
            f" {cluster.options.min_decisions}: is there load? Without, say --min-decisions 0"
        )


def promote(cluster: Cluster, pod: str, slot: str) -> None:
    """Have the executor follow the slot, and see that it does."""
    cluster.promote(pod, slot)
    cluster.wait(
        f"{pod}: {slot} is followed", lambda: bool(cluster.lanes(pod).get(slot, {}).get("active"))
    )


def upgrade_pod(cluster: Cluster, pod: str, image: str) -> None:
    """One pod: as the module says."""
    old, new = check(cluster, pod)
    idle_image = images(cluster.pod(pod))[new]
    say(f"{pod}: {image} into {new}")
    cluster.set_images("pod", pod, {new: image})
    try:
        shadow(cluster, pod, new, image)
        promote(cluster, pod, new)
    except (UpgradeError, KeyboardInterrupt):
        give_up(cluster, pod, old=old, new=new, idle_image=idle_image)
        raise
    say(f"{pod}: {new} is followed")
    if not cluster.options.keep_old:
        cluster.set_images("pod", pod, {old: idle_image})


def give_up(cluster: Cluster, pod: str, *, old: str, new: str, idle_image: str) -> None:
    """Have the old slot followed, whatever came of the new one, and make that one idle."""
    say(f"{pod}: back to {old}")
    try:
        cluster.promote(pod, old)
    except UpgradeError as error:
        say(f"{pod}: {error}")  # the executor goes on with whom it has when the other ends
    cluster.set_images("pod", pod, {new: idle_image})


def find_shadow(cluster: Cluster, pod: str) -> str:
    """The slot that shadows beside one that is followed. Raises UpgradeError where none does."""
    lanes = cluster.lanes(pod)
    shadows = [slot for slot in SLOTS if slot in lanes and not lanes[slot].get("active")]
    if len(shadows) != 1 or len(lanes) != 2:
        raise UpgradeError(f"{pod}: a shadow is missing, attached are {sorted(lanes) or 'none'}")
    return shadows[0]


def roll_back_pod(cluster: Cluster, pod: str, idle_image: str) -> None:
    """Promote the shadow, make the other slot idle."""
    old = find_shadow(cluster, pod)
    promote(cluster, pod, old)
    say(f"{pod}: {old} is followed again")
    cluster.set_images("pod", pod, {SLOTS[1 - SLOTS.index(old)]: idle_image})


def finish_pod(cluster: Cluster, pod: str, idle_image: str) -> None:
    """Make the shadow idle."""
    cluster.set_images("pod", pod, {find_shadow(cluster, pod): idle_image})


def make_permanent(cluster: Cluster, pod: str) -> None:
    """Write the slots' images of a pod into the template, for pods that are made later."""
    template = cluster.workload()["spec"]
    if template.get("updateStrategy", {}).get("type") != "OnDelete":
        raise UpgradeError("updateStrategy is not OnDelete: a changed template would recreate pods")
    cluster.set_images("statefulset", cluster.options.name, images(cluster.pod(pod)))


def find_idle_image(cluster: Cluster) -> str:
    """That of the template's idle slot."""
    template = images(cluster.workload()["spec"]["template"])
    idle = [image for image in template.values() if is_idle(image)]
    if not idle:
        raise UpgradeError(f"no slot of the template is idle: {template}")
    return idle[0]


def run(cluster: Cluster, verb: str, image: str) -> None:
    """All pods, then the template. verb: upgrade, rollback or finish. Raises UpgradeError."""
    pods = cluster.pods()
    if not pods:
        raise UpgradeError(f"no pods of {cluster.options.name}")
    idle_image = find_idle_image(cluster)
    for pod in pods:
        if verb == "upgrade":
            upgrade_pod(cluster, pod, image)
        elif verb == "rollback":
            roll_back_pod(cluster, pod, idle_image)
        else:
            finish_pod(cluster, pod, idle_image)
    if not (verb == "upgrade" and cluster.options.keep_old):
        make_permanent(cluster, pods[-1])
        say("written into the template")


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)


def main(
    arguments: Sequence[str],
    kubectl: Kubectl = run_kubectl,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Parse, upgrade; the exit status."""
    given = parse(arguments)
    verb = "rollback" if given.rollback else "finish" if given.finish else "upgrade"
    options = Options(
        namespace=given.namespace,
        name=given.name,
        shadow_s=given.shadow_s,
        min_decisions=given.min_decisions,
        timeout_s=given.timeout_s,
        keep_old=given.keep_old,
    )
    try:
        run(Cluster(kubectl, options, sleep), verb, given.image or "")
    except UpgradeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, as the module says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("image", nargs="?", metavar="IMAGE", help="image of the new scheduler")
    what.add_argument("--rollback", action="store_true", help="return to the shadows")
    what.add_argument("--finish", action="store_true", help="make the shadows idle")
    add = parser.add_argument
    add("--keep-old", action="store_true", help="let the old one shadow")
    add("--namespace", default="specsched")
    add("--name", default="specsched", help="of the StatefulSet")
    add("--shadow-s", type=float, default=60.0, help="seconds to watch a shadow (%(default)s)")
    add(
        "--min-decisions",
        type=int,
        default=100,
        help="sound decisions that a shadow makes in that time at least (%(default)s)",
    )
    add("--timeout-s", type=float, default=600.0, help="of each wait (%(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
