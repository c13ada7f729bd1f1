import numpy as np
import pytest
from specsched_protocol.npz import read_arrays


def test_the_named_arrays_that_are_there(tmp_path):
    path = tmp_path / "arrays.npz"
    np.savez(path, a=np.arange(3), other=np.ones(2))
    arrays = read_arrays(path, ("a", "b"))
    assert list(arrays) == ["a"]
    np.testing.assert_array_equal(arrays["a"], [0, 1, 2])


@pytest.fixture
def damaged(tmp_path):
    """A deflated archive whose compressed bytes were overwritten."""
    path = tmp_path / "damaged.npz"
    np.savez_compressed(path, a=np.random.default_rng(0).integers(0, 9, 4096))
    content = bytearray(path.read_bytes())
    content[200:1200] = bytes(1000)
    path.write_bytes(content)
    return path


def test_a_damaged_archive_is_refused(damaged):
    with pytest.raises(ValueError, match=r"^is no \.npz archive of plain arrays"):
        read_arrays(damaged, ("a",))


def test_an_archive_of_nothing_has_no_arrays(tmp_path):
    path = tmp_path / "empty.npz"
    np.savez(path)
    assert read_arrays(path, ("a",)) == {}


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^is no \.npz archive of plain arrays"):
        read_arrays(path, ("a",))


def test_a_single_array_is_refused(tmp_path):
    path = tmp_path / "single.npz"
    with path.open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(ValueError, match=r"^is a single array, expected a \.npz archive$"):
        read_arrays(path, ("a",))


def test_pickled_objects_are_not_loaded(tmp_path):
    path = tmp_path / "objects.npz"
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"^is no \.npz archive of plain arrays$"):
        read_arrays(path, ("a",))


def test_a_file_that_is_not_there_stays_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "missing.npz", ("a",))
