"""Dashboard, alerts and documents speak of metrics that exist, and every alert is cared for."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from specsched_executor.telemetry.catalogue import CATALOGUE as EXECUTOR
from specsched_protocol.metrics import Metric
from specsched_scheduler.telemetry.catalogue import CATALOGUE as SCHEDULER

from tests.repository import ROOT
from tests.telemetry.promtool import RULES, alert_names, promtool

DASHBOARD = json.loads((ROOT / "deploy/grafana/specsched.json").read_text())
METRIC = re.compile(r"\b(?:specsched_|vllm:)\w+")
VARIABLES = {"$__rate_interval": "5m", "$executor": ".*", "$scheduler": ".*"}


def series(metric: Metric) -> set[str]:
    """Names that queries may use."""
    parts = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
    return {metric.name + part for part in parts}


KNOWN = {name: metric for metric in (*EXECUTOR, *SCHEDULER) for name in series(metric)}


def expressions(node: Any) -> Iterator[str]:
    """Every query of the dashboard, those of its variables and annotations included."""
    if isinstance(node, dict):
        yield from (v for k, v in node.items() if k in {"expr", "query"} and isinstance(v, str))
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from expressions(each)


def rule_text() -> str:
    """The rules without their summaries."""
    lines = RULES.read_text().splitlines()
    return "\n".join(line for line in lines if not line.strip().startswith(("summary:", "#")))


def test_no_metric_has_two_owners():
    names = [metric.name for metric in (*EXECUTOR, *SCHEDULER)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("metric", [*EXECUTOR, *SCHEDULER], ids=lambda m: m.name)
def test_a_metric_is_named_as_prometheus_wants_it(metric):
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert metric.help.endswith(".")
    assert all((metric.labels or {}).values()), "values of a label are told, so that they are few"


def test_the_dashboard_shows_metrics_that_exist():
    used = {name for query in expressions(DASHBOARD) for name in METRIC.findall(query)}
    assert used - KNOWN.keys() == set()
    assert len(used) > 50
    assert {panel["title"] for panel in DASHBOARD["panels"] if panel["type"] != "row"} >= {
        "Speed-up over no drafts",
        "Step time, predicted and measured",
        "Survival by position",
    }


def test_panels_have_places_of_their_own():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_queries_of_the_dashboard_are_promql(tmp_path):
    queries = [query for query in expressions(DASHBOARD) if METRIC.search(query)]
    queries = [query for query in queries if not query.startswith("label_values(")]
    rules = [
        {"record": f"q{index}", "expr": substituted(query)} for index, query in enumerate(queries)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    check(promtool(), "check", "rules", path)
    assert len(rules) > 60


def substituted(query: str) -> str:
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    assert "$" not in query
    return query


def test_rules_and_scrape_configuration_are_accepted():
    check(promtool(), "check", "rules", RULES)
    check(promtool(), "check", "config", RULES.with_name("scrape.yml"))


def check(*command: object) -> None:
    done = subprocess.run(
        list(map(str, command)), check=False, capture_output=True, text=True, cwd=RULES.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_rest_on_metrics_that_exist():
    used = set(METRIC.findall(rule_text()))
    assert used - KNOWN.keys() == set()
    assert len(used) > 20


def test_every_alert_has_its_paragraph_and_no_other():
    operations = (ROOT / "docs/operations.md").read_text()
    section = operations.split("\n## Alerts\n")[1].split("\n## ")[0]
    paragraphs = re.findall(r"^### (\w+)\n(.+?)(?=\n### |\Z)", section, flags=re.M | re.S)
    assert [name for name, _ in paragraphs] == sorted(
        alert_names(), key=[name for name, _ in paragraphs].index
    )
    assert all(len(text.split()) >= 20 for _, text in paragraphs)


def test_every_alert_is_fired_by_a_test():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("telemetry/test_alerts.py"))
    assert [name for name in alert_names() if f'"{name}"' not in tests] == []
