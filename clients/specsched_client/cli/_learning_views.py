"""What was learned, drawn in the terminal or as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from specsched_protocol.console import to_stdout
from specsched_protocol.picture import check_picture
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_client import SchedulerClient
from specsched_client._pictures import picture_errors
from specsched_client.cli._console import plain, print_json
from specsched_client.cli._discovery import find_scheduler

_BAR_CELLS = 32
_SHARE_CELLS = 16
_CURVE = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Confidences whose calibrated values are shown."""


@dataclass(frozen=True, slots=True)
class LearningView:
    """How an answer is shown: `draw` in the terminal, `plot` names the function for a picture."""

    draw: Callable[[pb.GetLearningResponse], None]
    plot: str


def show_learning(
    answer: pb.GetLearningResponse, view: LearningView, *, as_json: bool, picture: Path | None
) -> None:
    """Print what was learned; with `picture`, draw it to that file instead, or beside the JSON.

    Raises MissingDependencyError without matplotlib, InvalidRequestError where nothing can be drawn
    there.
    """
    if picture is not None:
        with picture_errors():
            check_picture("--plot", picture)
            _plot(view.plot)(answer, picture)
    if as_json:
        print_json(plain(answer))
    elif picture is None:
        view.draw(answer)


def _plot(name: str) -> Callable[[pb.GetLearningResponse, Path], None]:
    from specsched_client.cli import _learning_plots

    function: Callable[[pb.GetLearningResponse, Path], None] = getattr(_learning_plots, name)
    return function


def ask_learning(
    run_dir: Path | None, scheduler: str | None, timeout_s: float
) -> pb.GetLearningResponse:
    """Ask the scheduler meant what it learned."""
    _, target = find_scheduler(run_dir, scheduler)
    with SchedulerClient(target) as client:
        return client.learning(timeout_s=timeout_s)


# ===================== Calibration =====================


def print_calibration(learning: pb.GetLearningResponse) -> None:
    """One table for each executor and sampling class."""
    console = to_stdout()
    _print_head(console, learning)
    for attachment in learning.attachments:
        console.print(_headline(attachment))
        for name, part in (("greedy", attachment.greedy), ("sampled", attachment.sampled)):
            console.print(_class_table(name, part))


def _class_table(name: str, part: pb.ClassLearning) -> Table:
    title = f"{name}: {part.num_drafts} drafts, {part.num_refits} fits, {part.num_changes} changes"
    caption = (
        "T: temperature, b: intercept. Accepted up to a position (bar), expected by raw (o) and by"
        " calibrated (x) confidences."
    )
    table = Table(
        title=title, caption=caption, title_justify="left", caption_justify="left", box=None
    )
    table.pad_edge = False
    curve = "".join(f"{value:.1f} "[1:] + " " for value in _CURVE).rstrip()
    for header in ("pos", "T", "b", f"{curve} to", "acc", "raw", "cal"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for position, each in enumerate(part.positions):
        is_changed = each.temperature != 1.0 or each.intercept != 0.0
        shares = (each.accepted_share, each.raw_share, each.calibrated_share)
        table.add_row(
            str(position),
            f"{each.temperature:.2f}" if is_changed else "-",
            f"{each.intercept:+.2f}" if is_changed else "-",
            " ".join(f"{calibrated(value, each):.2f}"[1:] for value in _CURVE),
            *(f"{share:.0%}" if each.num_drafts else "-" for share in shares),
            _share_bar(each) if each.num_drafts else "not seen",
        )
    return table


def calibrated(confidence: float, position: pb.PositionLearning) -> float:
    """What a confidence of this position is taken for."""
    logit = math.log(confidence / (1.0 - confidence))
    scaled = logit / position.temperature + position.intercept
    return min(1.0 / (1.0 + math.exp(-scaled)), 0.99)


def _share_bar(position: pb.PositionLearning) -> Text:
    cells = ["="] * round(position.accepted_share * _SHARE_CELLS)
    cells += [" "] * (_SHARE_CELLS - len(cells))
    for share, mark in ((position.raw_share, "o"), (position.calibrated_share, "x")):
        cells[min(int(share * _SHARE_CELLS), _SHARE_CELLS - 1)] = mark
    return Text(f"|{''.join(cells)}|")


# ===================== Cost =====================


def print_cost(learning: pb.GetLearningResponse) -> None:
    """One table for each executor: sizes, with a bar each for the profile and for now."""
    console = to_stdout()
    _print_head(console, learning)
    for attachment in learning.attachments:
        console.print(_headline(attachment))
        cost = attachment.cost
        if cost.model_state != plan_pb2.MODEL_STATE_OK:
            console.print("no cost model: fewer than three sizes were profiled")
            continue
        console.print(_cost_line(attachment))
        console.print(_size_table(cost))
        if attachment.draft_length.loads:
            console.print(_draft_table(attachment.draft_length))


def _cost_line(attachment: pb.AttachmentLearning) -> str:
    cost, counters, plan = attachment.cost, attachment.counters, attachment.draft_length
    drafts = ", ".join(
        f"{each.draft_tokens if each.HasField('draft_tokens') else 'full'} x{each.ratio:.2f}"
        for each in cost.drafts
    )
    probes = f", a longer one every {plan.probe_period} steps" if plan.probe_period else ""
    return (
        f"{'corrected' if cost.in_use else 'as profiled'}:"
        f" {cost.offset_ms:+.2f} ms, x{cost.scale:.3f},"
        f" {cost.ms_per_context_token * 1e3:.4f} ms per 1000 context tokens"
        f" (profiled {cost.profiled_ms_per_context_token * 1e3:.4f});"
        f" {cost.num_samples} steps, {cost.num_changes} changes, {counters.num_probes} probes\n"
        f"drafts: of {plan.draft_tokens} tokens{probes}; cost {drafts or 'as profiled'}"
    )


def _size_table(cost: pb.CostLearning) -> Table:
    table = Table(box=None, pad_edge=False)
    for header in ("rows", "profiled", "now", "ratio", "steps"):
        table.add_column(header, justify="right")
    table.add_column("profiled (o), now (bar)")
    longest = max(max(each.profiled_ms, each.corrected_ms) for each in cost.sizes)
    for each in cost.sizes:
        cells = ["="] * max(1, round(each.corrected_ms / longest * _BAR_CELLS))
        cells += [" "] * (_BAR_CELLS - len(cells))
        cells[min(int(each.profiled_ms / longest * _BAR_CELLS), _BAR_CELLS - 1)] = "o"
        table.add_row(
            str(each.tokens),
            f"{each.profiled_ms:.2f} ms",
            f"{each.corrected_ms:.2f} ms",
            f"{each.ratio:.2f}" if each.HasField("ratio") else "-",
            str(each.num_samples),
            Text(f"|{''.join(cells)}|"),
        )
    return table


def _draft_table(draft_length: pb.DraftLengthLearning) -> Table:
    """By batch size: the length of drafts, and at each position what it brings and what it adds."""
    table = Table(
        box=None,
        caption="By position: accepted drafts per request / time added, as a share of the step.",
        caption_justify="left",
        pad_edge=False,
    )
    num_positions = max(len(load.positions) for load in draft_length.loads)
    for header in ("requests", "draft", *map(str, range(num_positions))):
        table.add_column(header, justify="right")
    for load in draft_length.loads:
        cells = (
            f"{each.gain:.2f}/{each.extra:.2f}" if each.num_seen else "-" for each in load.positions
        )
        table.add_row(f"~{load.num_requests}", str(load.draft_tokens), *cells)
    return table


# ===================== Both =====================


def _print_head(console: Console, learning: pb.GetLearningResponse) -> None:
    if learning.frozen:
        console.print("learning is frozen")
    if not learning.attachments:
        console.print("no executor is attached")


def _headline(attachment: pb.AttachmentLearning) -> str:
    counters, model = attachment.counters, attachment.model
    failures = ""
    if counters.num_failures:
        failures = f"\nlearning failed {counters.num_failures} times: frozen until it is resumed"
    return (
        f"\n{attachment.executor_name}: {model.name}, {model.drafter};"
        f" {counters.num_reports} steps reported, {counters.num_lost_reports} lost;"
        f" {counters.num_paired_drafts} drafts taught, {counters.num_altered_drafts} had altered"
        f" logits, {counters.num_unpaired_drafts} unknown{failures}"
    )


COST_VIEW = LearningView(print_cost, "plot_cost")
CALIBRATION_VIEW = LearningView(print_calibration, "plot_calibration")
