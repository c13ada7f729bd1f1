"""What was learned, as pictures. Needs matplotlib (extra `plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from specsched_protocol.picture import save_picture
from specsched_protocol.v1 import plan_pb2
from specsched_protocol.v1 import scheduler_pb2 as pb

from specsched_client._errors import InvalidRequestError
from specsched_client.cli._learning_views import calibrated

__all__ = ["plot_calibration", "plot_cost"]

_WIDTH_INCHES = 9.0
_ROW_INCHES = 3.6
_CURVE = np.linspace(0.02, 0.98, 97)


def plot_cost(learning: pb.GetLearningResponse, path: Path) -> None:
    """For each executor, milliseconds of a verification by rows: profiled, and as decided by now.

    Raises InvalidRequestError where there is nothing to draw, PictureError where `path` cannot be
    written.
    """
    priced = [
        each for each in learning.attachments if each.cost.model_state == plan_pb2.MODEL_STATE_OK
    ]
    figure, axes = _figure(len(priced), 1, "no executor with a cost model is attached")
    for attachment, (only,) in zip(priced, axes, strict=True):
        _draw_cost(only, attachment)
    _save(figure, path)


def _draw_cost(axes: Axes, attachment: pb.AttachmentLearning) -> None:
    sizes = attachment.cost.sizes
    rows = [each.tokens for each in sizes]
    # Any number of rows costs what the next size does.
    axes.step(rows, [s.profiled_ms for s in sizes], "o--", where="pre", label="profiled")
    axes.step(rows, [s.corrected_ms for s in sizes], "s-", where="pre", label="decided by now")
    unseen = [each for each in sizes if not each.HasField("ratio")]
    axes.plot(
        [each.tokens for each in unseen],
        [each.corrected_ms for each in unseen],
        "wo",
        markersize=3,
        label="never run",
    )
    axes.set(xlabel="rows", ylabel="ms", xscale="log", ylim=(0, None), title=_title(attachment))
    axes.legend(fontsize="small")


def plot_calibration(learning: pb.GetLearningResponse, path: Path) -> None:
    """For each executor and sampling class that was seen: what is accepted up to each position
    against what confidences promised, and the calibration's curve of each position.

    Raises InvalidRequestError where there is nothing to draw, PictureError where `path` cannot be
    written.
    """
    seen = [
        (attachment, name, part)
        for attachment in learning.attachments
        for name, part in (("greedy", attachment.greedy), ("sampled", attachment.sampled))
        if part.num_drafts
    ]
    figure, axes = _figure(len(seen), 2, "no draft was learned from yet")
    for (attachment, name, part), (left, right) in zip(seen, axes, strict=True):
        _draw_shares(left, f"{_title(attachment)}, {name}", part)
        _draw_curves(right, part)
    _save(figure, path)


def _draw_shares(axes: Axes, title: str, part: pb.ClassLearning) -> None:
    places = [at for at, each in enumerate(part.positions) if each.num_drafts]
    shown = [part.positions[at] for at in places]
    axes.bar(places, [each.accepted_share for each in shown], color="0.8", label="accepted")
    axes.plot(places, [each.raw_share for each in shown], "o--", label="raw confidences")
    axes.plot(places, [each.calibrated_share for each in shown], "s-", label="calibrated")
    axes.set(xlabel="position", ylabel="share accepted up to here", ylim=(0, 1), title=title)
    axes.legend(fontsize="small")


def _draw_curves(axes: Axes, part: pb.ClassLearning) -> None:
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=1)
    for place, each in enumerate(part.positions):
        if each.num_drafts:
            worth = [calibrated(float(value), each) for value in _CURVE]
            axes.plot(_CURVE, worth, label=f"position {place}", linewidth=1)
    axes.set(xlabel="confidence", ylabel="calibrated", xlim=(0, 1), ylim=(0, 1))
    axes.legend(fontsize="x-small")


def _title(attachment: pb.AttachmentLearning) -> str:
    return f"{attachment.executor_name}: {attachment.model.name}"


def _figure(
    num_rows: int, num_columns: int, otherwise: str
) -> tuple[Figure, Sequence[Sequence[Axes]]]:
    if not num_rows:
        raise InvalidRequestError(f"nothing to draw: {otherwise}")
    figure = Figure(figsize=(_WIDTH_INCHES, _ROW_INCHES * num_rows))
    return figure, figure.subplots(num_rows, num_columns, squeeze=False).tolist()


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    save_picture("--plot", figure, path)
