"""The table at the end of `make gpu-check`."""

from __future__ import annotations

import json
import shutil

from scripts.gpu_table import main
from tests.repository import ROOT

RECORD = ROOT / "docs/benchmarks/raw/row_kernels.nvidia-h200.json"


def test_it_shows_the_median_of_every_time_of_a_record(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    shutil.copy(RECORD, tmp_path)
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "kernel=rms_norm" in line]
    assert "rows=2048" in line
    (record,) = [
        each for each in json.loads(RECORD.read_text())["results"] if each["kernel"] == "rms_norm"
    ]
    assert f" {record['us']['p50']:.4g} " in line


def test_an_empty_folder_is_no_success(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    assert "no record" in capsys.readouterr().out
