"""Traces of `specsched eval drafter` as one small fixture.

python -m tests.bench.simulator.pack OUT.npz TRACE.npz...
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

__all__ = ["pack"]

LOGIT_STEPS = 64
"""Logits are rounded to one of so many within 1."""
DOMAINS = ("math", "code", "chat", "copy")
Arrays = dict[str, npt.NDArray[Any]]


def pack(
    out: Annotated[Path, typer.Argument(help="Written")],
    traces: Annotated[list[Path], typer.Argument(help="Of prompts named for DOMAINS")],
) -> None:
    """Keep what a replay needs, the steps of each request together and in order.

    Drafts cut short by the end of an answer are left out, and whatever follows them.
    """
    parts, num_requests = [], 0
    for trace in traces:
        with np.load(trace) as arrays:
            part = _whole_drafts({name: arrays[name] for name in arrays.files})
        order = np.argsort(part["request"], kind="stable")
        _, request = np.unique(part["request"][order], return_inverse=True)
        domain = [DOMAINS.index(name) for name in part["domain"][order].tolist()]
        parts.append(
            {
                "conf_logit": _rounded(part["conf_logit"][order]),
                "accepted": part["accepted"][order].astype(np.int8),
                "request": (request + num_requests).astype(np.int16),
                "domain": np.array(domain, dtype=np.int8),
                "temperature": part["temperature"][order].astype(np.float16),
            }
        )
        num_requests += int(request.max()) + 1
    np.savez_compressed(
        out, **{name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    )


def _whole_drafts(trace: Arrays) -> Arrays:
    num_verified, request, position = trace["num_verified"], trace["request"], trace["step_pos"]
    is_cut = (num_verified > 0) & (num_verified < trace["conf_logit"].shape[1])
    ends = np.full(request.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(ends, request[is_cut], position[is_cut])
    return {name: values[position < ends[request]] for name, values in trace.items()}


def _rounded(logit: npt.NDArray[np.floating]) -> npt.NDArray[np.float16]:
    return (np.rint(logit * LOGIT_STEPS) / LOGIT_STEPS).astype(np.float16)


if __name__ == "__main__":
    typer.run(pack)
