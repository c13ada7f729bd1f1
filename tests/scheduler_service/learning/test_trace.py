"""Reading recorded drafts, and `specsched calibrate`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from specsched_scheduler.calibrate_file import calibrate
from specsched_scheduler.decision.calibration import GREEDY, SAMPLED
from specsched_scheduler.learning.document import read_state
from specsched_scheduler.learning.errors import TraceError
from specsched_scheduler.learning.trace import read_trace
from typer import Typer
from typer.testing import CliRunner

from tests.scheduler_service.learning.traces import PATH

app = Typer()
app.command()(calibrate)


def arrays(num_rows=600, k=2, **changes):
    rng = np.random.default_rng(0)
    conf = rng.random((num_rows, k)).astype(np.float32)
    accepted = np.cumprod(rng.random(conf.shape) < conf, axis=1).sum(axis=1)
    return {"conf": conf, "accepted": accepted, **changes}


def write(path, **content):
    np.savez(path, **content)
    return path


def run(*args):
    return CliRunner().invoke(app, [str(each) for each in args])


def test_classes_come_from_temperatures():
    parts = read_trace(PATH)
    assert {of_class: len(rows) for of_class, rows in parts.items()} == {
        GREEDY: 13870,
        SAMPLED: 11153,
    }


def test_missing_confidences_were_not_verified(tmp_path):
    content = arrays(accepted=np.zeros(600, dtype=np.int64))
    content["conf"][0, 1] = np.nan
    rows = read_trace(write(tmp_path / "t.npz", **content))[SAMPLED]
    assert rows.num_verified[:2].tolist() == [1, 2]


def test_logits_will_do(tmp_path):
    content = arrays()
    conf = content.pop("conf").astype(np.float64)
    logit = np.log(conf / (1 - conf))
    rows = read_trace(write(tmp_path / "t.npz", conf_logit=logit, **content))[SAMPLED]
    np.testing.assert_allclose(rows.logit, logit)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"conf": np.full((600, 2), 1.5)}, r"conf\[0, 0\] is 1.5"),
        ({"conf": np.zeros(600)}, "conf is float64"),
        ({"conf": np.zeros((600, 65))}, "k in 1..64"),
        ({"conf": np.zeros((600, 2), dtype=np.int64)}, "conf is int64"),
        ({"accepted": np.full(600, 3)}, r"accepted\[0\] is 3, accepted are 0 to 2"),
        ({"accepted": np.zeros(5, dtype=np.int64)}, "accepted is int64"),
        ({"accepted": np.zeros(600)}, "accepted is float64"),
        ({"num_verified": np.full(600, 9)}, r"num_verified\[0\] is 9"),
        ({"temperature": np.zeros(4)}, "temperature has shape"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, changes, words):
    with pytest.raises(TraceError, match=words):
        read_trace(write(tmp_path / "t.npz", **arrays(**changes)))


def test_missing_arrays_are_named(tmp_path):
    with pytest.raises(TraceError, match="neither conf nor conf_logit"):
        read_trace(write(tmp_path / "a.npz", accepted=np.zeros(3, dtype=np.int64)))
    with pytest.raises(TraceError, match="has no accepted"):
        read_trace(write(tmp_path / "b.npz", conf=np.zeros((3, 2))))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 broken"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "t.npz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"no \.npz archive") as refused:
        read_trace(path)
    assert "pickle" not in str(refused.value)


def test_pickles_are_never_loaded(tmp_path):
    path = write(tmp_path / "t.npz", **arrays(accepted=np.array([print] * 600, dtype=object)))
    with pytest.raises(TraceError, match="plain arrays"):
        read_trace(path)


def test_command_answers_json_and_writes_a_state(tmp_path):
    out = tmp_path / "state.json"
    trace = write(tmp_path / "t.npz", **arrays())
    result = run(trace, "--class", "greedy", "--json", "--out", out, "--model", "m")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.output)["greedy"]
    assert answer["num_rows"] == 600
    assert [each["position"] for each in answer["positions"]] == [0, 1]
    (entry,) = read_state(out.read_text()).entries
    assert (entry.model, entry.max_draft_tokens) == ("m", 2)
    assert entry.calibration.greedy.num_rows == 600


def test_command_shows_a_table(tmp_path):
    result = run(write(tmp_path / "t.npz", **arrays()))
    assert result.exit_code == 0
    assert "sampled: 600 drafts" in result.output
    assert "ECE after" in result.output


def test_command_draws(tmp_path):
    trace, picture = write(tmp_path / "t.npz", **arrays()), tmp_path / "r.png"
    assert run(trace, "--plot", picture).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    for name in ("r.docx", "."):
        refused = run(trace, "--plot", tmp_path / name)
        assert refused.exit_code == 2
        assert f"--plot {tmp_path / name}: " in refused.output
    assert {each.name for each in tmp_path.iterdir()} == {"t.npz", "r.png"}


def test_command_names_what_is_wrong(tmp_path):
    missing = run(tmp_path / "none.npz")
    assert missing.exit_code == 2
    assert "No such file" in missing.output
    folder = run(tmp_path)
    assert folder.exit_code == 2
    assert "is a folder; accepted: recorded drafts, .npz files" in folder.output
    wrong = run(write(tmp_path / "t.npz", **arrays(accepted=np.full(600, 3))))
    assert wrong.exit_code == 2
    assert "accepted[0] is 3" in wrong.output
    both = run(PATH, "--class", "greedy")
    assert both.exit_code == 2
    assert "has temperatures" in both.output


def test_traces_of_several_runs_are_fitted_together(tmp_path):
    greedy = write(tmp_path / "greedy.npz", **arrays(temperature=np.zeros(600)))
    sampled = write(tmp_path / "sampled.npz", **arrays(temperature=np.ones(600)))
    result = run(greedy, sampled, sampled, "--json")
    assert result.exit_code == 0, result.output
    fits = json.loads(result.output)
    assert {name: fit["num_rows"] for name, fit in fits.items()} == {"greedy": 600, "sampled": 1200}
    groups = {name: fit["num_requests"] for name, fit in fits.items()}
    assert groups["sampled"] == 2 * groups["greedy"]
    shorter = write(tmp_path / "k1.npz", conf=np.full((4, 1), 0.5), accepted=np.zeros(4, int))
    refused = run(sampled, shorter)
    assert refused.exit_code == 2
    assert "k1.npz: 1 draft positions cannot be joined to 2" in refused.output
