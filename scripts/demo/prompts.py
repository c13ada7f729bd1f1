"""What the demo asks, written for it by hand.

Prompt lookup drafts by finding the last tokens again earlier in the text. The first answers repeat
the prompt or themselves and so draft well, the last ones hardly at all: the decisions differ for a
reason.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PROMPTS", "Prompt"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of the demo; `title` heads its panel."""

    title: str
    text: str


PROMPTS = (
    Prompt(
        "mend the spelling",
        "Correct the spelling: The lighthous keeper climbed the stairs evry evening. He lit the "
        "lamp, cleand the glass and wrote the hour into the book. Then the lighthous keeper sat "
        "down and waited for the ship.",
    ),
    Prompt("a class", "Write a Python class Stack with the methods push, pop, peek and is_empty."),
    Prompt("unit tests", "Write unit tests in Python for a function add(a, b), five asserts."),
    Prompt("a page", "Write an HTML page with a list of five fruits."),
    Prompt("explain", "Why does the sky look blue at noon and red in the evening?"),
    Prompt("a story", "Tell a short story about a violin maker who lives beside a noisy railway."),
)
