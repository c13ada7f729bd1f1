"""Reads the Containerfile and carries out a target's steps in a virtual environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.repository import ROOT

CONTAINERFILE = ROOT / "deploy" / "containers" / "Containerfile"
_SKIPPED_FILES = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc")


@dataclass(frozen=True)
class Target:
    """base: an image, or another target. steps: (instruction, rest) in their order."""

    base: str
    steps: list[tuple[str, str]]

    def last(self, instruction: str) -> str:
        return [rest for name, rest in self.steps if name == instruction][-1]


def read_targets(path: Path = CONTAINERFILE) -> dict[str, Target]:
    targets: dict[str, Target] = {}
    steps: list[tuple[str, str]] = []
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        instruction, rest = line.split(" ", 1)
        if instruction == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()
            steps = []
            targets[name] = Target(base, steps)
        else:
            steps.append((instruction, rest))
    return targets


class Image:
    """The file system of a target as a folder, and Python's environment in it as `environment`."""

    def __init__(self, root: Path, environment: Path) -> None:
        self.root, self.environment = root, environment
        self._workdir = root

    @property
    def bin(self) -> Path:
        return self.environment / "bin"

    def build(self, target: Target, others: dict[str, Image]) -> None:
        """Carry out COPY, WORKDIR and RUN; what else there is has no meaning outside an image."""
        for instruction, rest in target.steps:
            match instruction:
                case "WORKDIR":
                    self._workdir = self.root / rest.lstrip("/")
                    self._workdir.mkdir(parents=True, exist_ok=True)
                case "COPY":
                    self._copy(rest.split(), others)
                case "RUN":
                    self._run(rest)
                case _:
                    assert instruction in {"ENV", "ARG", "USER", "ENTRYPOINT"}, instruction

    def _copy(self, words: list[str], others: dict[str, Image]) -> None:
        source = ROOT
        if words[0].startswith("--from="):
            source = others[words.pop(0).removeprefix("--from=")].root
        *patterns, target = words
        to = self._workdir / target
        for pattern in patterns:
            (*found,) = source.glob(pattern.lstrip("/"))
            assert found, f"COPY {pattern}: nothing is there"
            for each in found:
                if each.is_dir():
                    shutil.copytree(each, to, ignore=_SKIPPED_FILES)
                else:
                    shutil.copy(each, to)

    def _run(self, command: str) -> None:
        # Absolute paths are those of the image. Modules are compiled when they are imported; pip
        # takes the value of the variable for that of `compile`, not of `--no-compile`.
        command = re.sub(r"(?<=\s)/(?=\w)", f"{shlex.quote(str(self.root))}/", command)
        environ = {**os.environ, "PATH": f"{self.bin}:{os.defpath}", "PIP_NO_COMPILE": "0"}
        done = subprocess.run(
            ["/bin/sh", "-ec", command],
            check=False,
            capture_output=True,
            text=True,
            timeout=540,
            env=environ,
            cwd=self._workdir,
        )
        assert done.returncode == 0, (command, done.stderr)
