"""The figure of ragged and uniform steps comes from their numbers, the same each time."""

from __future__ import annotations

from scripts.draw_sparse_step import draw

RESULTS = [
    {"requests": n, "kind": kind, "p50": us * n**0.5}
    for n in (1, 8, 64)
    for kind, us in (("uniform", 5000.0), ("ragged", 5050.0))
]


def test_the_same_numbers_draw_the_same_figure(tmp_path):
    first, second = tmp_path / "a" / "step.svg", tmp_path / "b" / "step.svg"
    for path in (first, second):
        path.parent.mkdir()
        draw(RESULTS, path)
    assert first.read_bytes() == second.read_bytes()
    draw([{**row, "p50": row["p50"] * 1.5} for row in RESULTS], second)
    assert first.read_bytes() != second.read_bytes()
