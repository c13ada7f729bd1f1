"""What `calibration show` and `cost show` draw."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from specsched_client import InvalidRequestError, MissingDependencyError
from specsched_client.cli._console import plain
from specsched_client.cli._learning_plots import plot_calibration, plot_cost
from specsched_client.cli._learning_views import (
    COST_VIEW,
    print_calibration,
    print_cost,
    show_learning,
)
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

POSITION = pb.PositionLearning(
    temperature=1.5,
    intercept=-0.4,
    num_drafts=1200,
    accepted_share=0.5,
    raw_share=0.75,
    calibrated_share=0.52,
)
DRAFT_LENGTH = pb.DraftLengthLearning(
    draft_tokens=2,
    probe_period=64,
    loads=[
        pb.LoadLearning(
            num_requests=16,
            draft_tokens=2,
            positions=[
                pb.DraftPositionLearning(gain=0.75, extra=0.125, num_seen=4096),
                pb.DraftPositionLearning(),
            ],
        )
    ],
)
LEARNING = pb.GetLearningResponse(
    frozen=True,
    attachments=[
        pb.AttachmentLearning(
            executor_name="executor-7",
            model=pb.ModelFacts(name="tiny", drafter="dspark"),
            counters=pb.LearningCounters(num_reports=900, num_altered_drafts=3),
            sampled=pb.ClassLearning(
                num_drafts=1200, positions=[POSITION, pb.PositionLearning(temperature=1.0)]
            ),
            cost=pb.CostLearning(
                model_state=plan_pb2.MODEL_STATE_OK,
                in_use=True,
                offset_ms=0.5,
                scale=1.3,
                sizes=[
                    pb.SizeLearning(tokens=1, profiled_ms=2.0, corrected_ms=3.0),
                    pb.SizeLearning(
                        tokens=8, profiled_ms=4.0, corrected_ms=8.0, ratio=1.25, num_samples=70
                    ),
                ],
                drafts=[pb.DraftCostLearning(ratio=1.1)],
            ),
            draft_length=DRAFT_LENGTH,
        )
    ],
)


def test_calibration_is_drawn(capsys):
    print_calibration(LEARNING)
    drawn = capsys.readouterr().out
    assert "learning is frozen" in drawn
    assert "executor-7: tiny, dspark; 900 steps reported" in drawn
    (line,) = (each for each in drawn.splitlines() if "|" in each)
    assert line.split()[:3] == ["0", "1.50", "-0.40"]
    assert line[: line.index("|")].split()[-3:] == ["50%", "75%", "52%"]
    bar = line[line.index("|") + 1 : line.rindex("|")]
    # Half is accepted; raw confidences expect three quarters, calibrated ones a little over half.
    assert (bar.count("="), bar.index("o"), bar.index("x")) == (8, 12, 8)
    assert max(len(each) for each in drawn.splitlines() if "|" in each) <= 80
    assert "not seen" in drawn
    assert "failed" not in drawn


@pytest.mark.parametrize("draw", [print_calibration, print_cost])
def test_that_learning_fails_is_told(draw, capsys):
    counters = pb.LearningCounters(num_failures=7)
    draw(pb.GetLearningResponse(attachments=[pb.AttachmentLearning(counters=counters)]))
    assert "learning failed 7 times: frozen until it is resumed" in capsys.readouterr().out


def test_cost_is_drawn(capsys):
    print_cost(LEARNING)
    drawn = capsys.readouterr().out
    assert "corrected: +0.50 ms, x1.300" in drawn
    assert "drafts: of 2 tokens, a longer one every 64 steps; cost full x1.10" in drawn
    assert ["~16", "2", "0.75/0.12", "-"] in [line.split() for line in drawn.splitlines()]
    rows = [each for each in drawn.splitlines() if "|" in each]
    bars = [each[each.index("|") + 1 : each.rindex("|")] for each in rows]
    assert [each.index("o") for each in bars] == [8, 16]
    assert bars[1].count("=") == 31
    assert rows[1].split()[:5] == ["8", "4.00", "ms", "8.00", "ms"]


def test_without_a_model_there_is_nothing_to_draw(capsys):
    attachment = pb.AttachmentLearning(
        cost=pb.CostLearning(model_state=plan_pb2.MODEL_STATE_NO_MODEL)
    )
    print_cost(pb.GetLearningResponse(attachments=[attachment]))
    assert "no cost model: fewer than three sizes were profiled" in capsys.readouterr().out
    print_calibration(pb.GetLearningResponse())
    assert "no executor is attached" in capsys.readouterr().out


def test_json_has_every_field():
    read = json.loads(json.dumps(plain(LEARNING)))
    (attachment,) = read["attachments"]
    assert attachment["cost"]["sizes"][1]["ratio"] == 1.25
    assert "ratio" not in attachment["cost"]["sizes"][0]
    assert attachment["cost"]["num_changes"] == "0"
    assert attachment["sampled"]["positions"][0]["intercept"] == -0.4


@pytest.fixture
def figures(monkeypatch):
    """Axes of the figures drawn, row by row."""
    drawn: list[list[Axes]] = []
    real = Figure.subplots

    def keep(figure, *arguments, **options):
        axes = real(figure, *arguments, **options)
        drawn.extend(axes.tolist())
        return axes

    monkeypatch.setattr(Figure, "subplots", keep)
    return drawn


@pytest.mark.parametrize("plot", [plot_cost, plot_calibration])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_are_drawn(plot, suffix, tmp_path: Path):
    path = tmp_path / f"picture.{suffix}"
    plot(LEARNING, path)
    assert path.read_bytes().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


def test_a_picture_of_costs_has_both_curves(tmp_path: Path, figures):
    plot_cost(LEARNING, tmp_path / "cost.png")
    ((axes,),) = figures
    curves = {line.get_label(): line for line in axes.get_lines()}
    assert list(curves["profiled"].get_xdata()) == [1, 8]
    assert list(curves["profiled"].get_ydata()) == [2.0, 4.0]
    assert list(curves["decided by now"].get_ydata()) == [3.0, 8.0]
    assert list(curves["never run"].get_xdata()) == [1]
    assert "executor-7" in axes.get_title()


def test_a_picture_of_a_calibration_has_shares_and_curves(tmp_path: Path, figures):
    plot_calibration(LEARNING, tmp_path / "calibration.png")
    (shares, curves) = figures[0]
    assert [bar.get_height() for bar in shares.patches] == [0.5]
    lines = {line.get_label(): line for line in shares.get_lines()}
    assert list(lines["raw confidences"].get_ydata()) == [0.75]
    (curve,) = [line for line in curves.get_lines() if line.get_label() == "position 0"]
    middle = list(curve.get_xdata()).index(0.5)
    # logit 0 at temperature 1.5, then the intercept of -0.4
    assert curve.get_ydata()[middle] == pytest.approx(0.401, abs=1e-3)


@pytest.mark.parametrize("plot", [plot_cost, plot_calibration])
def test_what_cannot_be_drawn_is_told(plot, tmp_path: Path):
    with pytest.raises(InvalidRequestError, match="nothing to draw"):
        plot(pb.GetLearningResponse(), tmp_path / "a.png")


@pytest.mark.parametrize("name", ["a.txt", ".", "none/a.png"])
def test_a_picture_that_cannot_be_written_is_refused_by_name(name, tmp_path: Path):
    path = tmp_path / name
    with pytest.raises(InvalidRequestError, match=re.escape(f"--plot {path}: ")):
        show_learning(LEARNING, COST_VIEW, as_json=False, picture=path)


def test_without_matplotlib_the_option_says_what_to_install(monkeypatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'specsched\[plot\]'"):
        show_learning(LEARNING, COST_VIEW, as_json=False, picture=tmp_path / "a.png")


def test_a_picture_takes_the_place_of_the_table_and_goes_beside_json(tmp_path: Path, capsys):
    show_learning(LEARNING, COST_VIEW, as_json=False, picture=tmp_path / "a.png")
    assert capsys.readouterr().out == ""
    show_learning(LEARNING, COST_VIEW, as_json=True, picture=tmp_path / "b.png")
    assert json.loads(capsys.readouterr().out) == plain(LEARNING)
    assert (tmp_path / "a.png").exists()
    assert (tmp_path / "b.png").exists()
