"""A turn of the watch does all that can be done, and leaves who cannot be watched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from specsched_executor.attach.watch import Duty, Watch
from structlog.testing import capture_logs


class Scene:
    """A watch whose parts fail as long as their names are in `broken`; done: what was, in order."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.broken: set[str] = set()
        self.done: list[str] = []
        duties = (Duty(self.part("often"), 1.0), Duty(self.part("seldom"), 10.0))
        self.watch = Watch(
            self.part("look"),
            duties,
            patience_s=3.0,
            give_up=self.part("give up"),
            clock=lambda: self.now_s,
        )

    def part(self, name: str) -> Callable[[], None]:
        def act() -> None:
            if name in self.broken:
                raise RuntimeError(name)
            self.done.append(name)

        return act

    def turns(self, num_turns: int, interval_s: float = 1.0) -> list[str]:
        """What is done in so many turns."""
        self.done.clear()
        for _ in range(num_turns):
            self.watch.turn()
            self.now_s += interval_s
        return [*self.done]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_duties_are_done_when_they_are_due(scene: Scene) -> None:
    assert scene.turns(1) == ["look", "often", "seldom"]
    assert scene.turns(4, interval_s=0.5) == ["look", "often", "look", "look", "often", "look"]
    assert scene.turns(12).count("seldom") == 1


@pytest.mark.parametrize("broken", ["look", "often", "seldom"])
def test_a_part_that_fails_leaves_the_others_and_is_told_once(scene: Scene, broken: str) -> None:
    scene.broken.add(broken)
    with capture_logs() as logs:
        done = scene.turns(3, interval_s=0.1)
        scene.now_s += 20.0
        done += scene.turns(1)
    others = {"look", "often", "seldom"} - {broken}
    assert set(done) >= others
    assert broken not in done
    first, *_ = logs
    assert (first["event"], first["reason"]) == (
        "watching schedulers failed",
        f"RuntimeError: {broken}",
    )
    assert sum("exc_info" in line for line in logs) == 1
    assert scene.watch.num_faults > 1


def test_who_cannot_be_watched_is_given_up_until_it_can(scene: Scene) -> None:
    with capture_logs():
        scene.broken.add("look")
        assert "give up" not in scene.turns(3)
        scene.broken.clear()
        assert "give up" not in scene.turns(1)
        scene.broken.add("look")  # the patience begins anew
        assert "give up" not in scene.turns(3)
        assert scene.turns(2).count("give up") == 2
        scene.broken.clear()
        assert "give up" not in scene.turns(3)


def test_giving_up_may_fail_too(scene: Scene) -> None:
    scene.broken |= {"look", "give up"}
    with capture_logs():
        assert scene.turns(5).count("often") == 5
    assert scene.watch.num_faults == 5 + 2
