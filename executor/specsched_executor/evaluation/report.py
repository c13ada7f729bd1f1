"""What an evaluation found, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from specsched_executor.evaluation.calibration_file import CalibrationFile, logits
from specsched_executor.evaluation.recorder import Outcomes
from specsched_executor.evaluation.statistics import (
    mean_accepted,
    position_quality,
    reliability,
)

__all__ = ["build_report", "report_lines", "save_trace"]

_ANSWER_PARTS = (0, 32, 64, 128, 192)


def build_report(
    outcomes: Outcomes,
    sources: Sequence[str],
    prompt_tokens: Sequence[int],
    *,
    temperature: float,
    calibration: CalibrationFile | None,
) -> dict[str, Any]:
    """sources, prompt_tokens: of request i, which has seed i."""
    accepted, seed = outcomes.num_accepted, outcomes.seed
    source = np.array(sources)[seed] if len(seed) else np.array([], dtype=str)
    part = _answer_part(outcomes, prompt_tokens)
    report: dict[str, Any] = {
        "temperature": temperature,
        **mean_accepted(accepted, seed).to_json(),
        "by_source": {
            str(name): mean_accepted(accepted[source == name], seed[source == name]).to_json()
            for name in np.unique(source)
        },
        "by_answer_position": {
            f"from {start}": mean_accepted(accepted[part == i], seed[part == i]).to_json()
            for i, start in enumerate(_ANSWER_PARTS)
            if (part == i).any()
        },
        "raw": _confidence_report(outcomes, outcomes.confidence),
    }
    if calibration is not None:
        calibrated = calibration.apply(outcomes.confidence, int(temperature > 0))
        report["calibrated"] = _confidence_report(outcomes, calibrated)
    return report


def report_lines(report: dict[str, Any]) -> Iterator[str]:
    """The report as a text."""
    yield (
        f"temperature {report['temperature']:g}: mean_accepted {_mean_text(report, '95 %: ')},"
        f" {report['num_steps']} steps of {report['num_requests']} requests"
    )
    for title in ("by_source", "by_answer_position"):
        for name, found in report[title].items():
            yield f"  {name}: {_mean_text(found)}"
    for kind in ("raw", "calibrated"):
        for row in report.get(kind, {}).get("positions", ()):
            yield (
                f"  {kind} position {row['position']}: accepted {row['acceptance']:.3f} of"
                f" {row['num_reached']} AUC {_number_text(row['auc'])} ECE {row['ece']:.4f}"
                f" Brier {row['brier']:.4f} cumulative ECE {row['cumulative_ece']:.4f}"
            )


def _mean_text(found: dict[str, Any], interval: str = "") -> str:
    mean, bounds = found["mean_accepted"], (found["low_95"], found["high_95"])
    if None in bounds:
        return _number_text(mean)
    low, high = map(_number_text, bounds)
    return f"{_number_text(mean)} ({interval}{low} to {high})"


def _number_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def save_trace(
    path: Path,
    outcomes: Outcomes,
    sources: Sequence[str],
    prompt_tokens: Sequence[int],
    *,
    temperature: float,
) -> None:
    """Confidences and outcomes as a .npz file, for `specsched calibrate` and replay.

    request, temperature, step_pos (tokens of the answer so far), conf, conf_logit [n, k],
    num_verified, accepted, domain.
    """
    np.savez_compressed(
        path,
        request=outcomes.seed,
        temperature=np.full(len(outcomes.seed), temperature),
        step_pos=outcomes.history_tokens - _lengths(outcomes, prompt_tokens),
        conf=outcomes.confidence.astype(np.float32),
        conf_logit=logits(outcomes.confidence).astype(np.float32),
        num_verified=outcomes.num_verified,
        accepted=outcomes.num_accepted,
        domain=np.array(sources)[outcomes.seed],
    )


def _lengths(outcomes: Outcomes, prompt_tokens: Sequence[int]) -> Any:
    return np.array(prompt_tokens, dtype=np.int64)[outcomes.seed]


def _answer_part(outcomes: Outcomes, prompt_tokens: Sequence[int]) -> Any:
    position = outcomes.history_tokens - _lengths(outcomes, prompt_tokens)
    return np.searchsorted(_ANSWER_PARTS, position, side="right") - 1


def _confidence_report(outcomes: Outcomes, confidence: Any) -> dict[str, Any]:
    known = np.isfinite(confidence[:, 0]) if len(confidence) else np.zeros(0, dtype=bool)
    if not known.any():
        return {"positions": [], "reliability": []}
    kept = confidence[known]
    verified, accepted = outcomes.num_verified[known], outcomes.num_accepted[known]
    quality = position_quality(kept, verified, accepted)
    survival = np.cumprod(kept, axis=1)
    column = np.arange(kept.shape[1])
    seen = (column < verified[:, None]) & np.isfinite(survival)
    outcome = (column < accepted[:, None]).astype(np.float64)
    return {
        "positions": [asdict(each) for each in quality],
        "reliability": [asdict(b) for b in reliability(survival[seen], outcome[seen])],
    }
