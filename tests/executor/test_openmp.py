"""How OpenMP is told to wait, in programs of their own: it is read as torch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"


def shown(program: str, **chosen: str) -> str:
    variables = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in variables}
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; {SHOW}"],
        env={**environment, **chosen},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


PACKAGE = "import specsched_executor"
LONG = "from specsched_executor._openmp import wait_long; wait_long()"
FORGET = "from specsched_executor._openmp import forget_waiting; forget_waiting()"


@pytest.mark.parametrize(
    ("program", "expected"), [(PACKAGE, "200"), (LONG, "30000"), (FORGET, "None")]
)
def test_where_nothing_was_chosen(program, expected):
    assert shown(program) == expected


@pytest.mark.parametrize("program", [PACKAGE, LONG, FORGET])
def test_what_the_user_chose_stays(program):
    assert shown(program, GOMP_SPINCOUNT="77") == "77"
    assert shown(program, OMP_WAIT_POLICY="passive") == "None"
