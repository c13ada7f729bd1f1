"""Write the parts of the documents that code says: options, policies, commands, exit codes.

    python -m scripts.gen_docs            # rewrite what is between the markers
    python -m scripts.gen_docs --check    # exit with 1 where a document says something else

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import typer
from specsched_client.cli._main import app
from specsched_executor.config import ExecutorConfig
from specsched_executor.telemetry.catalogue import CATALOGUE as EXECUTOR_METRICS
from specsched_protocol.exit_codes import ExitCode
from specsched_protocol.metrics import Metric
from specsched_protocol.settings import ProcessSettings, Settings
from specsched_scheduler.config import SchedulerConfig
from specsched_scheduler.decision.codes import Feature
from specsched_scheduler.policies.base import Parameter
from specsched_scheduler.policies.builtin import BUILT_IN
from specsched_scheduler.policies.features import FEATURES
from specsched_scheduler.telemetry.catalogue import CATALOGUE as SCHEDULER_METRICS

from scripts.option_facts import OptionFacts, option_facts

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENTS: Final = tuple(ROOT / "docs" / f"{name}.md" for name in ("operations", "cli", "metrics"))

_PART = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
_WHOLE = 1000
_SERVERS: Final = {"scheduler", "executor"}
"""Commands whose options are tables of their own, and which print logs, no answer."""


# ===================== Options =====================


def options_table(facts: Iterator[OptionFacts]) -> str:
    """Options as a table."""
    lines = ["| option | default | unit | accepted | what it is |", "|---|---|---|---|---|"]
    for each in facts:
        what = each.description.replace("|", "\\|")
        lines.append(f"| `{each.flag}` | {each.default} | {each.unit} | {each.accepted} | {what} |")
    return "\n".join(lines)


def _options(settings: type[Settings], *, shared: bool) -> str:
    return options_table(
        facts for owner, facts in option_facts(settings) if (owner is ProcessSettings) == shared
    )


# ===================== Commands =====================


def commands_table(root: Any) -> str:
    """Every command with the first line of its help, and whether it prints JSON."""
    lines = ["| command | `--json` | what it does |", "|---|---|---|"]
    for words, command in leaves(root, ()):
        has_json = any("--json" in parameter.opts for parameter in command.params)
        mark = "yes" if has_json else "it logs" if words[0] in _SERVERS else "no"
        summary = command.get_short_help_str(_WHOLE)
        lines.append(f"| `specsched {' '.join(words)}` | {mark} | {summary} |")
    return "\n".join(lines)


def leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands below a group, with the words that lead to each."""
    if not hasattr(command, "list_commands"):
        yield words, command
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), (*words, name))


def exit_codes_table() -> str:
    """What the exit status says."""
    meanings = {
        ExitCode.OK: "done",
        ExitCode.FAILED: "the server or a policy failed, or what was asked was not done",
        ExitCode.BAD_INPUT: "the input cannot be used: stderr names it and what is accepted",
        ExitCode.UNREACHABLE: "nobody answers at the target",
        ExitCode.TIMED_OUT: "the time limit passed",
        ExitCode.MISSING_PACKAGE: "an optional package is missing: stderr says how to install it",
    }
    lines = ["| exit status | meaning |", "|---|---|"]
    lines += [f"| {code.value} | {meanings[code]} |" for code in ExitCode]
    return "\n".join([*lines, "| 130 | interrupted (Ctrl-C); `top` ends with 0 then |"])


# ===================== Metrics =====================


def metrics_table(catalogue: Iterable[Metric]) -> str:
    """Every metric with its labels beyond those that all have."""
    lines = ["| metric | kind | labels | what it is |", "|---|---|---|---|"]
    for metric in catalogue:
        labels = "; ".join(f"`{name}`: {values}" for name, values in (metric.labels or {}).items())
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines)


# ===================== Policies =====================

_PARAMETER_UNITS: Final = {
    "k": "drafts of each request",
    "p": "probability",
    "step_ms": "ms",
    "min_tokens_per_second": "tokens/s of each request",
    "fairness": "exponent, 0: off",
}
EXAMPLES: Final = {
    "throughput": "throughput(fairness=0.5)",
    "fixed": "fixed(3)",
    "threshold": "threshold(0.4)",
    "slo": "slo(step_ms=20)",
}


def policies_table() -> str:
    """Every policy of the package with its parameters."""
    lines = ["| policy | what it verifies | parameters | as typed |", "|---|---|---|---|"]
    for name, policy in BUILT_IN.items():
        what = (policy.__doc__ or "").partition("\n")[0]
        own = (each for each in policy.parameters if each not in FEATURES)
        parameters = "; ".join(map(_parameter, own)) or "none"
        typed = f'`specsched policy set "{EXAMPLES.get(name, name)}"`'
        lines.append(f"| `{name}` | {what} | {parameters} | {typed} |")
    return "\n".join(lines)


_LEFT_OUT: Final = {
    Feature.RANKING: (
        "drafts do not compete for rows: all requests have one cap, that of the highest ratio"
    ),
    Feature.CONTEXT: "the context read is in no price",
    Feature.CALIBRATION: (
        "confidences count as the drafter tells them, in the budget and in the executor's ranking"
    ),
    Feature.PRIOR: (
        "drafts without a confidence count as certain, not as the mean of their position"
    ),
    Feature.DRAFT_LENGTH: "drafts are always full, none are skipped",
    Feature.FILL: "the budget is not fitted to the captured size that runs the step",
    Feature.CORRECTION: "steps are priced by the profile as told",
}


def features_table() -> str:
    """What policies can leave out, and which."""
    lines = ["| as typed | what is left out | also of |", "|---|---|---|"]
    for feature, parameter in zip(Feature, FEATURES, strict=True):
        takers = [name for name, policy in BUILT_IN.items() if parameter in policy.parameters]
        others = ", ".join(f"`{name}`" for name in takers if name != "throughput")
        lines.append(f"| `throughput({parameter.name}=0)` | {_LEFT_OUT[feature]} | {others} |")
    return "\n".join(lines)


def _parameter(parameter: Parameter) -> str:
    default = "required" if parameter.default is None else f"default {parameter.default:g}"
    unit = _PARAMETER_UNITS[parameter.name]
    bounds = f"{parameter.minimum:.15g} to {parameter.maximum:.15g}"
    return f"`{parameter.name}`: {unit}, {bounds}, {default}"


PARTS: Final[dict[str, Callable[[], str]]] = {
    "options of both": lambda: _options(SchedulerConfig, shared=True),
    "options of the scheduler": lambda: _options(SchedulerConfig, shared=False),
    "options of the executor": lambda: _options(ExecutorConfig, shared=False),
    "metrics of the executor": lambda: metrics_table(EXECUTOR_METRICS),
    "metrics of the scheduler": lambda: metrics_table(SCHEDULER_METRICS),
    "commands": lambda: commands_table(typer.main.get_command(app)),
    "exit codes": exit_codes_table,
    "policies": policies_table,
    "features": features_table,
}


# ===================== Documents =====================


def rewritten(text: str) -> str:
    """`text` with its generated parts as they are now. Raises KeyError for an unknown part."""
    return _PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}\n{part[3]}", text)


def stale() -> list[Path]:
    """Documents that say something else than the code."""
    return [path for path in DOCUMENTS if rewritten(path.read_text()) != path.read_text()]


def main() -> int:
    """Rewrite, or check."""
    if "--check" in sys.argv[1:]:
        for path in stale():
            print(f"{path.relative_to(ROOT)} is out of date: run `make docs`", file=sys.stderr)
        return bool(stale())
    for path in stale():
        path.write_text(rewritten(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
