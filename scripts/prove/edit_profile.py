"""A kept cost profile made wrong on purpose, to see what the schedule makes of it.

python -m scripts.prove.edit_profile FOLDER OUT --scale 1.3

FOLDER is an executor's --profile-dir; the same executor with --profile-dir OUT believes the copy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["edited"]


def edited(
    profile: Mapping[str, Any],
    *,
    scale: float = 1.0,
    slope: float = 1.0,
    spike_rows: int | None = None,
    no_context: bool = False,
) -> dict[str, Any]:
    """The profile with wrong costs of steps.

    scale: of every step. slope: of what a step takes beyond the smallest one. spike_rows: a size
    whose samples all took ten times as long. no_context: context costs nothing.
    """
    verify: dict[str, Sequence[float]] = profile["verify_ms"]
    base = min(min(samples) for samples in verify.values())
    wrong = {
        size: [scale * (base + slope * (ms - base)) for ms in samples]
        for size, samples in verify.items()
    }
    if spike_rows is not None:
        wrong[str(spike_rows)] = [10 * ms for ms in wrong[str(spike_rows)]]
    changes = {"context_ms_per_token": 0.0} if no_context else {}
    return {**profile, "verify_ms": wrong, **changes}


def main() -> int:
    """Write the wrong copies of all profiles in a folder."""
    parser = argparse.ArgumentParser(prog="python -m scripts.prove.edit_profile")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--slope", type=float, default=1.0)
    parser.add_argument("--spike-rows", type=int)
    parser.add_argument("--no-context", action="store_true")
    options = vars(parser.parse_args())
    folder, out = options.pop("folder"), options.pop("out")
    out.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("cost-*.json"):
        wrong = edited(json.loads(path.read_text()), **options)
        (out / path.name).write_text(json.dumps(wrong, indent=1))
        print(out / path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
