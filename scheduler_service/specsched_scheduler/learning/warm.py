"""Compiling what learning runs, before it would compile beside served steps."""

from __future__ import annotations

import numpy as np

from specsched_scheduler.learning.calibration.fit import FitConfig, fit_class
from specsched_scheduler.learning.calibration.observations import Observations

__all__ = ["warm_up_learning"]


def warm_up_learning() -> None:
    """Fit one position to a few drafts, as a served executor's are fitted."""
    num_rows = 16
    rows = np.arange(num_rows)
    observations = Observations(
        np.linspace(-1.0, 1.0, num_rows)[:, None],
        np.ones(num_rows, dtype=np.int64),
        (rows % 2).astype(np.int64),
        rows,
    )
    fit_class(observations, FitConfig(min_rows=1, num_folds=2, refines=False))
