"""Step costs for recordings that have none."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.json_format import Parse, ParseError
from specsched_protocol.v1 import plan_pb2

from specsched_scheduler.decision.cost import CostTable
from specsched_scheduler.decision.errors import InvalidRequestError
from specsched_scheduler.decision.wire import cost_model_from_message
from specsched_scheduler.learning.errors import TraceError
from specsched_scheduler.trace.reader import read_trace_files

__all__ = ["read_cost"]


def read_cost(path: Path, max_draft_tokens: int) -> CostTable:
    """The profile of a recorded trace, or JSON of specsched.v1.CostModel.

    Raises TraceError naming what is wrong with the file.
    """
    try:
        if path.suffix == ".parquet":
            message = next(read_trace_files(path)).cost
        else:
            message = Parse(path.read_text(encoding="utf-8"), plan_pb2.CostModel())
        table = cost_model_from_message(message, max_draft_tokens).compile()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except (ParseError, InvalidRequestError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: no cost profile: {error}") from error
    if not table.has_model:
        raise TraceError(f"{path}: it has too few sizes to price a step")
    return table
