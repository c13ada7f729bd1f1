"""Evaluates the alert rules over what processes really exported, by promtool.

    fired(before, after) == {"SpecschedStepsFail"}

`before` and `after` are two scrapes. Series are made of them: gauges stay as they were last,
counters go on growing as between the two (or stop, with goes_on=False), so that a condition that a
test caused lasts as long as a rule's `for` wants.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.repository import ROOT

RULES = ROOT / "deploy/prometheus/alerts.yml"
INTERVAL_S = 15
NUM_SAMPLES = 160


def promtool() -> str:
    """Where it is; skips the test where it is not, but not in CI."""
    path = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if path is None:
        assert not os.environ.get("CI"), "no promtool: scripts/get_promtool should have put it here"
        pytest.skip("no promtool: scripts/get_promtool puts it into .venv/bin where it can")
    return path


def fired(
    before: str, after: str, *, at: str = "30m", goes_on: bool = True, job: str = "specsched"
) -> set[str]:
    """Names of the alerts that fire `at` a time after the first scrape."""
    labels = {"job": job, "instance": "test"}
    names = alert_names()
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{INTERVAL_S}s",
        "tests": [
            {
                "interval": f"{INTERVAL_S}s",
                "input_series": list(_series(before, after, labels, goes_on=goes_on)),
                "promql_expr_test": [
                    {"expr": _firing(name), "eval_time": at, "exp_samples": [_present(name)]}
                    for name in names
                ],
            }
        ],
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "test.yml"
        path.write_text(json.dumps(document))  # JSON is YAML
        done = subprocess.run(
            [promtool(), "test", "rules", str(path)], check=False, capture_output=True, text=True
        )
    output = done.stdout + done.stderr
    missing = [line for line in output.splitlines() if line.strip().startswith("expr:")]
    assert missing or done.returncode == 0, output
    # Every alert was said to be expected: promtool tells those that did not come.
    return {name for name in names if not any(f'\\"{name}\\"' in line for line in missing)}


def alert_names() -> list[str]:
    """Of the rules, as the file has them."""
    lines = RULES.read_text().splitlines()
    return [line.split("alert:")[1].strip() for line in lines if "- alert:" in line]


def _firing(name: str) -> str:
    return f'group by (alertname) (ALERTS{{alertstate="firing", alertname="{name}"}})'


def _present(name: str) -> dict[str, object]:
    return {"labels": f'{{alertname="{name}"}}', "value": 1}


def _series(
    before: str, after: str, labels: dict[str, str], *, goes_on: bool
) -> Iterator[dict[str, str]]:
    first = dict(_samples(before, labels))
    for name, (value, is_counter) in _samples(after, labels):
        earlier = first.get(name, (0.0 if is_counter else value, is_counter))[0]
        step = value - earlier if is_counter and goes_on else 0.0
        values = f"{_number(earlier)} {_number(value)}+{_number(step)}x{NUM_SAMPLES}"
        yield {"series": name, "values": values}


def _samples(text: str, labels: dict[str, str]) -> Iterator[tuple[str, tuple[float, bool]]]:
    for family in text_string_to_metric_families(text):
        is_counter = family.type in {"counter", "histogram"}
        for sample in family.samples:
            pairs = _written(sorted((sample.labels | labels).items()))
            yield f"{sample.name}{{{pairs}}}", (sample.value, is_counter)


def _written(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f'{key}="{value}"' for key, value in pairs)


def _number(value: float) -> str:
    return f"{value:.9f}"


def scraped_up(*, answers: bool) -> str:
    """What a Prometheus notes of the scrape itself."""
    return f"# TYPE up gauge\nup {int(answers)}\n"
