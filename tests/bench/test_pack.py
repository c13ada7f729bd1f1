"""A packed recording holds the steps of whole drafts, request by request."""

from __future__ import annotations

import numpy as np

from tests.bench.simulator.pack import pack


def test_steps_of_a_request_come_together_and_end_before_a_draft_cut_short(tmp_path):
    trace, out = tmp_path / "trace.npz", tmp_path / "out.npz"
    silent = [np.nan, np.nan]
    np.savez(
        trace,
        request=np.array([3, 5, 3, 5, 3, 3]),
        step_pos=np.array([1, 1, 2, 4, 5, 7]),
        conf_logit=np.array([silent, [0.501, 1], [0.25, 2], [1, 1], [2, 2], silent]),
        num_verified=np.array([0, 2, 2, 2, 1, 0]),
        accepted=np.array([0, 2, 2, 1, 1, 0]),
        domain=np.array(["copy", "chat", "copy", "chat", "copy", "copy"]),
        temperature=np.ones(6),
    )
    pack(out, [trace, trace])
    with np.load(out) as arrays:
        assert arrays["request"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert arrays["accepted"].tolist() == [0, 2, 2, 1] * 2
        assert arrays["domain"].tolist() == [3, 3, 2, 2] * 2
        assert np.isnan(arrays["conf_logit"][0]).all()
        assert arrays["conf_logit"][2].tolist() == [0.5, 1.0]
