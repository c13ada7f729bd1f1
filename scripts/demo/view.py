"""What the demo shows: panels and a strip on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from specsched_protocol.v1.plan_pb2 import MODEL_STATE_OK
from specsched_protocol.v1.scheduler_pb2 import WatchDecisionsResponse

from scripts.demo.state import Answer, DemoState

__all__ = ["View", "open_view"]

REFRESH_PER_SECOND = 10
PLAIN_INTERVAL_S = 1.0
MAX_TEXT_LINES = 5
NUM_COLUMNS = 2
PANEL_EDGES = 2
FIXED_LINES = 6
"""The headline, the panel of the decisions and the line that the cursor is on."""
BARS = " ▁▂▃▄▅▆▇█"


class View(Protocol):
    """Shows the state until the demo ends."""

    def finished(self, answer: Answer) -> None:
        """An answer is complete."""


@contextlib.asynccontextmanager
async def open_view(console: Console, state: DemoState) -> AsyncIterator[View]:
    """Show `state` while the block runs: live on a terminal, else as lines."""
    if console.is_terminal:
        with Live(console=console, get_renderable=lambda: screen(state, *console.size)):
            yield LiveView()
        return
    plain = PlainView(console, state)
    printer = asyncio.create_task(plain.print_progress())
    try:
        yield plain
    finally:
        printer.cancel()


class LiveView:
    """rich's Live redraws the whole state by itself."""

    def finished(self, answer: Answer) -> None:
        """Nothing to add: the panel shows it."""


class PlainView:
    """A line per second with the last decision, and each answer when it is complete."""

    def __init__(self, console: Console, state: DemoState) -> None:
        self._console = console
        self._state = state

    def finished(self, answer: Answer) -> None:
        """Print the answer."""
        text = Text(f"\n--- {answer.prompt.title} ({answer.num_tokens} tokens) ---\n")
        self._console.print(text.append(answer.text.strip() + "\n"), soft_wrap=True)

    async def print_progress(self) -> None:
        """Print phase changes and decisions until cancelled."""
        last_phase, last_step = "", -1
        while True:
            if self._state.phase != last_phase:
                last_phase = self._state.phase
                self._console.print(Text(last_phase))
            if self._state.decisions and self._state.decisions[-1].decision.step_id != last_step:
                last_step = self._state.decisions[-1].decision.step_id
                self._console.print(decision_line(self._state.decisions[-1]), soft_wrap=True)
            await asyncio.sleep(PLAIN_INTERVAL_S)


# ===================== Rendering =====================


def screen(state: DemoState, width: int, height: int) -> RenderableType:
    """The whole picture: a headline, a panel per prompt, the decisions."""
    headline = Text(f" {state.phase}", style="bold")
    if not state.answers:
        dots = "." * (1 + int(time.monotonic() * 2) % 3)
        return headline.append(dots)
    headline.append(f"   {state.tokens_per_second:6.1f} tokens/s", style="green")
    grid = Table.grid(expand=True, padding=(0, 1))
    for _ in range(NUM_COLUMNS):
        grid.add_column(ratio=1)
    text_width = width // NUM_COLUMNS - 6
    num_lines = text_lines(height, math.ceil(len(state.answers) / NUM_COLUMNS))
    panels = [answer_panel(answer, text_width, num_lines) for answer in state.answers]
    for start in range(0, len(panels), NUM_COLUMNS):
        grid.add_row(*panels[start : start + NUM_COLUMNS])
    return Group(headline, grid, decision_strip(list(state.decisions)))


def text_lines(height: int, num_rows: int) -> int:
    """Lines of text per panel that leave room for the decisions, the last thing on the screen."""
    room = (height - FIXED_LINES) // num_rows - PANEL_EDGES
    return max(1, min(room, MAX_TEXT_LINES))


def answer_panel(answer: Answer, text_width: int, num_lines: int) -> Panel:
    """The last lines of one answer."""
    wrapped = Text(answer.text.strip()).wrap(Console(width=text_width), text_width)
    lines = [line.plain.rstrip() for line in wrapped][-num_lines:]
    body = "\n".join(lines + [""] * (num_lines - len(lines)))
    status = answer.finish_reason or "..."
    return Panel(
        Text(body),
        title=answer.prompt.title,
        title_align="left",
        subtitle=f"{answer.num_tokens} tokens, {status}",
        subtitle_align="right",
        border_style="dim" if answer.finish_reason else "cyan",
        box=box.ROUNDED,
    )


def decision_strip(decisions: Sequence[WatchDecisionsResponse]) -> Panel:
    """The last decision in words and the share of drafts that recent ones let through."""
    if not decisions:
        return Panel(Text("no decision yet"), title="scheduler", title_align="left")
    history = "".join(verified_bar(d) for d in decisions)
    body = Text.assemble(decision_line(decisions[-1]), "\n", ("share verified  ", "dim"), history)
    return Panel(body, title="scheduler, its decisions", title_align="left", border_style="yellow")


def decision_line(watched: WatchDecisionsResponse) -> Text:
    """One decision in one line."""
    decision = watched.decision
    line = Text(
        f"step {decision.step_id:>5}  {policy_name(watched):<12} "
        f"{watched.num_requests:>2} requests  {watched.num_draft_tokens:>3} drafts  "
        f"budget {decision.budget:>3}  expects {decision.expected_tokens:5.1f} tokens"
    )
    if decision.model_state == MODEL_STATE_OK:
        return line.append(f" in {decision.expected_ms:5.1f} ms")
    return line.append("  (no cost model)", style="red")


def policy_name(watched: WatchDecisionsResponse) -> str:
    """The policy as it is written on the command line."""
    spec = watched.decision.policy
    values = ", ".join(f"{name}={value:g}" for name, value in spec.parameters.items())
    return f"{spec.name}({values})" if values else spec.name


def verified_bar(watched: WatchDecisionsResponse) -> str:
    """Budget as a share of the drafts present: a bar, blank where there was nothing to decide."""
    if watched.num_draft_tokens == 0:
        return " "
    share = min(1.0, watched.decision.budget / watched.num_draft_tokens)
    return BARS[1 + round(share * (len(BARS) - 2))]
