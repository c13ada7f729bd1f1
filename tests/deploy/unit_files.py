"""Unit files as systemd reads them: as far as ours go."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.repository import ROOT

FOLDER = ROOT / "deploy" / "systemd"
EXECUTOR = FOLDER / "specsched-executor.service"
SCHEDULER = FOLDER / "specsched-scheduler@.service"
EXAMPLES = sorted((FOLDER / "examples").glob("*.conf"))

_SPECIFIER = re.compile(r"%(.)")
# What the specifiers of a system unit stand for (systemd.unit(5)).
SYSTEM_FOLDERS = {"t": "/run", "S": "/var/lib", "C": "/var/cache", "d": "/run/credentials/UNIT"}


@dataclass(frozen=True)
class Unit:
    """Settings of a unit file in their order; section and key -> values."""

    settings: dict[tuple[str, str], list[str]]

    @classmethod
    def read(cls, *files: Path) -> Unit:
        """A unit file and its drop-ins."""
        settings: dict[tuple[str, str], list[str]] = {}
        section = ""
        for file in files:
            for line in file.read_text().splitlines():
                text = line.strip()
                if text.startswith("["):
                    section = text.strip("[]")
                elif text and not text.startswith("#"):
                    key, _, value = text.partition("=")
                    settings.setdefault((section, key), []).append(value)
        return cls(settings)

    def values(self, key: str, section: str = "Service") -> list[str]:
        return self.settings.get((section, key), [])

    def value(self, key: str, section: str = "Service") -> str:
        (value,) = self.values(key, section)
        return value

    def command(self, instance: str = "", folders: dict[str, str] | None = None) -> list[str]:
        """The words of ExecStart, specifiers replaced; folders: other ones than the system's."""
        return shlex.split(expand(self.value("ExecStart"), instance, folders))

    def environment(
        self, instance: str = "", folders: dict[str, str] | None = None
    ) -> dict[str, str]:
        """What Environment= sets; environment files are the operator's."""
        pairs = [word for value in self.values("Environment") for word in shlex.split(value)]
        return dict(expand(pair, instance, folders).split("=", 1) for pair in pairs)


def expand(text: str, instance: str, folders: dict[str, str] | None = None) -> str:
    known = {**SYSTEM_FOLDERS, **(folders or {}), "i": instance, "%": "%"}
    return _SPECIFIER.sub(lambda match: known[match[1]], text)


def seconds(span: str) -> float:
    """A time span such as 20min or 200ms."""
    number, unit = re.fullmatch(r"(\d+)\s*(ms|s|min)", span).groups()
    return float(number) * {"ms": 1e-3, "s": 1.0, "min": 60.0}[unit]
