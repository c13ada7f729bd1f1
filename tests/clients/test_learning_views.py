"""What `calibration show` and `cost show` draw."""

from __future__ import annotations

import json

from specsched_client.cli._learning_views import print_calibration, print_cost, to_json
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
            draft_length=pb.DraftLengthLearning(draft_tokens=2, probe_period=64),
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
    assert max(map(len, drawn.splitlines())) <= 80
    assert "not seen" in drawn


def test_cost_is_drawn(capsys):
    print_cost(LEARNING)
    drawn = capsys.readouterr().out
    assert "corrected: +0.50 ms, x1.300" in drawn
    assert "drafts: of 2 tokens, a longer one every 64 steps; cost full x1.10" in drawn
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
    read = json.loads(json.dumps(to_json(LEARNING)))
    (attachment,) = read["attachments"]
    assert attachment["cost"]["sizes"][1]["ratio"] == 1.25
    assert "ratio" not in attachment["cost"]["sizes"][0]
    assert attachment["cost"]["num_changes"] == "0"
    assert attachment["sampled"]["positions"][0]["intercept"] == -0.4
