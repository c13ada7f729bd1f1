"""What the demo asks, written for it by hand.

Prompt lookup drafts by finding the last tokens again earlier in the text. The first prompts repeat
themselves and so draft well, the last ones hardly at all: the decisions differ for a reason.
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
        "rename in code",
        "Rename the variable total to price_sum in this function and print the whole function:\n\n"
        "def checkout(items, discount):\n"
        "    total = 0\n"
        "    for item in items:\n"
        "        total = total + item.price * item.quantity\n"
        "    if discount > 0:\n"
        "        total = total - total * discount\n"
        "    return total\n",
    ),
    Prompt(
        "repeat a table",
        "Copy this list exactly, twice:\n"
        "1. apples, 3 boxes, cold room A\n"
        "2. pears, 5 boxes, cold room A\n"
        "3. plums, 2 boxes, cold room B\n"
        "4. grapes, 7 boxes, cold room C\n",
    ),
    Prompt(
        "quote a text",
        "Repeat the following paragraph word for word and then say who the keeper waited for: "
        "The lighthouse keeper climbed the stairs every evening. He lit the lamp, cleaned the "
        "glass and wrote the hour into the book. Then the lighthouse keeper sat down and waited "
        "for the ship that brought the mail.",
    ),
    Prompt("count", "Count from 1 to 40 in words, separated by commas."),
    Prompt("explain", "Why does the sky look blue at noon and red in the evening?"),
    Prompt("a story", "Tell a short story about a violin maker who lives beside a noisy railway."),
)
