"""The documents point at things that exist, and the README keeps to its length."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from specsched_client.cli._main import app
from typer.testing import CliRunner

from tests.repository import ROOT

DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text()
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]+)?\)")
SPECSCHED_CALL = re.compile(r"^specsched ((?:[a-z]+ ?)+)", flags=re.MULTILINE)
MAKE_CALL = re.compile(r"(?:^|`)make ([a-z-]+)", flags=re.MULTILINE)


def anchors(markdown: str) -> set[str]:
    """Anchors of the headings, as they are derived when a document is shown."""
    headings = re.findall(r"^#+ (.+)$", markdown, flags=re.MULTILINE)
    return {"#" + re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def broken_links(document) -> list[str]:
    """Relative links of `document` to files or headings that do not exist."""
    broken = []
    for path, anchor in LINK.findall(document.read_text()):
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(path + anchor)
    return broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    assert broken_links(document) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_make_targets_in_the_text_exist(document):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(MAKE_CALL.findall(document.read_text())) <= set(targets)


def test_commands_in_the_text_exist():
    """Asked of the command itself: an unknown word in front of --help is an error."""
    calls = {c.strip() for d in DOCUMENTS for c in SPECSCHED_CALL.findall(d.read_text())}
    assert {"scheduler", "executor", "policy set"} <= calls
    asked = {tuple(call.split()[: 2 if call.startswith("policy") else 1]) for call in calls}
    for words in sorted(asked):
        answered = CliRunner().invoke(app, [*words, "--help"])
        assert answered.exit_code == 0, (words, answered.output)


def test_every_dependency_is_justified():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {Requirement(line).name for group in groups for line in group} - {project["name"]}
    table = (ROOT / "docs/architecture.md").read_text().split("## Dependencies")[1].split("##")[0]
    justified = {
        name
        for row in re.findall(r"^\| ([^|]+) \|", table, flags=re.MULTILINE)
        for name in re.findall(r"[\w-]+", row)
    }
    assert names - justified == set()


def test_readme_is_short_and_begins_with_the_two_commands():
    text = README
    assert len(text.splitlines()) <= 150
    assert MAKE_CALL.findall(text)[:2] == ["demo", "test"]


def test_results_in_the_documents_are_those_of_the_raw_record():
    records = sorted((ROOT / "docs/benchmarks/raw").glob("decision.*.json"))
    found = {
        (f"{case['num_requests']}, {case['max_draft_tokens']}", case["table"]): (
            f"{case['best_round_p50_us']:.1f}",
            f"{case['numpy_best_round_p50_us']:.1f}",
        )
        for record in records
        for case in json.loads(record.read_text())["results"]
    }
    text = (ROOT / "docs/benchmarks/README.md").read_text()
    told = re.findall(r"^\| (\d+, \d+) \| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert {(size, table): (ours, numpy) for size, table, ours, numpy in told} == found


def test_make_alone_lists_the_verbs():
    outside_make = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    done = subprocess.run(
        ["make"], cwd=ROOT, check=True, capture_output=True, text=True, env=outside_make
    )
    listed = {line.split()[0] for line in done.stdout.splitlines()}
    assert {"demo", "test", "bench", "protos", "lint", "help"} <= listed


def test_a_broken_link_is_found(tmp_path):
    document = tmp_path / "page.md"
    document.write_text("# A title\n[a](gone.md) [b](#a-title) [c](#other) [d](page.md#a-title)\n")
    assert broken_links(document) == ["gone.md", "#other"]
