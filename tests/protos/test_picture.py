"""A picture is written to the file that was named, or it is said why not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from specsched_protocol.exit_codes import ExitCode
from specsched_protocol.picture import (
    MissingMatplotlibError,
    PictureError,
    check_picture,
    save_picture,
)

BEGINNINGS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".PNG": b"\x89PNG"}


@pytest.mark.parametrize("suffix", BEGINNINGS)
def test_it_is_written_in_the_format_of_its_name_in_place_of_what_was_there(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"picture{suffix}"
    path.write_bytes(b"what was there")
    save_picture("--plot", Figure(), path)
    assert path.read_bytes().startswith(BEGINNINGS[suffix])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".", ": is a folder; accepted: a file that ends in .png, .svg, .pdf"),
        ("folder.png", ": is a folder; accepted"),
        ("picture", ": of no known format; accepted: a file that ends in .png, .svg, .pdf"),
        ("picture.docx", ": of no known format; accepted"),
        ("nowhere/picture.png", "nowhere is no folder"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    name: str, reason: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    (folder / "folder.png").mkdir(parents=True)
    path = folder / name
    for refuse in (check_picture, lambda option, path: save_picture(option, Figure(), path)):
        with pytest.raises(PictureError) as refused:
            refuse("--plot", path)
        assert str(refused.value).startswith(f"--plot {path}")
        assert reason in str(refused.value)
        assert refused.value.exit_code is ExitCode.BAD_INPUT
    assert list(folder.iterdir()) == [folder / "folder.png"]
    assert list(tmp_path.iterdir()) == [folder], "matplotlib would write folder.png beside it"


def test_a_disk_that_fails_is_named(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.symlink_to("/dev/full")
    with pytest.raises(PictureError, match=r"--plot .*picture\.png: No space left on device$"):
        save_picture("--plot", Figure(), path)


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingMatplotlibError, match=r"pip install 'specsched\[plot\]'") as refused:
        check_picture("--plot", tmp_path / "picture.png")
    assert refused.value.exit_code is ExitCode.MISSING_PACKAGE
