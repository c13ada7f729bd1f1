"""Traces: what a scheduler saw, decided and was told afterwards, in Parquet files.

`recorder` writes them beside a running planner, `reader` reads them, `replay` judges another policy
on them. Those three need pyarrow, the extra [trace]; what is here does not.
"""

from __future__ import annotations

from .seam import StepRecorder, TraceConfig, open_recorder, trace_metadata

__all__ = ["StepRecorder", "TraceConfig", "open_recorder", "trace_metadata"]
