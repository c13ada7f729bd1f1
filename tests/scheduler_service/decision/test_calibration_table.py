"""The table form of a calibration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specsched_scheduler.decision.calibration import (
    GREEDY,
    SAMPLED,
    calibrate,
    calibrate_rows,
    compile_calibration,
    identity_table,
)

K = 3


def table(temperature, intercept):
    return compile_calibration(np.full((2, K), temperature), np.full((2, K), intercept))


def exact(confidence, temperature, intercept):
    logit = np.log(confidence) - np.log1p(-confidence)
    return 1.0 / (1.0 + np.exp(-(logit / temperature + intercept)))


@pytest.mark.parametrize("temperature", [0.25, 0.7, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("intercept", [-1.0, 0.0, 0.6])
def test_the_table_is_close_to_the_formula(temperature, intercept):
    confidence = np.linspace(1e-4, 1 - 1e-4, 3000).reshape(-1, K)
    got = calibrate(table(temperature, intercept), np.zeros(1000, dtype=np.int64), confidence)
    assert np.abs(got - exact(confidence, temperature, intercept)).max() < 5e-3


@settings(deadline=None)  # the first call compiles
@given(
    seed=st.integers(0, 2**32 - 1),
    temperature=st.floats(0.25, 4.0),
    intercept=st.floats(-3.0, 3.0),
    is_float32=st.booleans(),
)
def test_compiled_equals_plain(seed, temperature, intercept, is_float32):
    rng = np.random.default_rng(seed)
    dtype = np.float32 if is_float32 else np.float64
    confidence = rng.random((5, K)).astype(dtype)
    special = [0.0, 1.0, 0.5, np.nan, np.inf, -np.inf, -0.1, 1.1, 1e-30, np.nextafter(1, 0)]
    confidence[rng.integers(5), rng.integers(K)] = special[rng.integers(len(special))]
    classes = rng.integers(0, 2, size=5)
    compiled = compile_calibration(
        np.where(rng.random((2, K)) < 0.3, 1.0, temperature),
        np.where(rng.random((2, K)) < 0.3, 0.0, intercept),
    )
    out = np.zeros_like(confidence)
    calibrate_rows(compiled, classes, 5, confidence, out)
    np.testing.assert_array_equal(out, calibrate(compiled, classes, confidence))
    assert out.dtype == dtype


def test_identity_changes_no_bit():
    confidence = np.random.default_rng(1).random((50, K)).astype(np.float32)
    out = np.zeros_like(confidence)
    compiled = identity_table(K)
    calibrate_rows(compiled, np.zeros(50, dtype=np.int64), 50, confidence, out)
    np.testing.assert_array_equal(out, confidence)
    assert compiled.is_identity == 1
    assert table(2.0, 0.0).is_identity == 0


def test_order_within_a_position_is_kept():
    confidence = np.sort(np.random.default_rng(2).random((2000, K)), axis=0)
    got = calibrate(table(2.5, -0.7), np.zeros(2000, dtype=np.int64), confidence)
    assert (np.diff(got, axis=0) >= 0).all()


def test_each_class_has_its_own():
    compiled = compile_calibration(np.ones((2, K)), np.array([[1.0] * K, [0.0] * K]))
    confidence = np.full((2, K), 0.5)
    got = calibrate(compiled, np.array([GREEDY, SAMPLED]), confidence)
    assert got[0, 0] == pytest.approx(1 / (1 + np.exp(-1.0)))
    assert got[1, 0] == 0.5


def test_rows_beyond_the_count_stay():
    out = np.full((2, K), -1.0)
    calibrate_rows(table(2.0, 0.5), np.zeros(2, dtype=np.int64), 1, np.full((2, K), 0.3), out)
    assert (out[1] == -1.0).all()
    assert (out[0] > 0).all()
