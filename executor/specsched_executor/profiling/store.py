"""Profiles on disk, so that a restart does not measure again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from specsched_executor.profiling.cost_profile import ContextSlope, CostProfile

_FORMAT: Final = 3


def save_profile(profile: CostProfile, folder: Path) -> Path:
    """Write folder/cost-<fingerprint>.json, complete or not at all. OSError where that fails.

    For profiles that nobody disturbed: what is kept is believed by every later start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, profile.fingerprint)
    content = {
        "format": _FORMAT,
        "fingerprint": profile.fingerprint,
        "capture_limit": profile.capture_limit,
        "verify_ms": {str(rows): list(ms) for rows, ms in profile.verify.items()},
        "verify_context_tokens": {
            str(rows): tokens for rows, tokens in profile.verify_context_tokens.items()
        },
        "draft_ms": {str(requests): list(ms) for requests, ms in profile.draft.items()},
        "short_draft_ms": {
            str(length): {str(requests): list(ms) for requests, ms in drafts.items()}
            for length, drafts in profile.short_drafts.items()
        },
        "context_ms_per_token": None if profile.context is None else profile.context.ms_per_token,
    }
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
    partial.replace(path)
    return path


def load_profile(folder: Path, fingerprint: str) -> CostProfile | None:
    """The stored profile with this fingerprint; None when there is none or it is damaged."""
    path = _path(folder, fingerprint)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT or content["fingerprint"] != fingerprint:
            return None
        return _parse(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _parse(content: Mapping[str, Any]) -> CostProfile:
    slope = content["context_ms_per_token"]
    return CostProfile(
        verify=_samples(content["verify_ms"]),
        verify_context_tokens={
            int(rows): int(tokens) for rows, tokens in content["verify_context_tokens"].items()
        },
        capture_limit=int(content["capture_limit"]),
        fingerprint=str(content["fingerprint"]),
        context=None if slope is None else ContextSlope(float(slope)),
        draft=_samples(content["draft_ms"]),
        short_drafts={
            int(length): _samples(drafts) for length, drafts in content["short_draft_ms"].items()
        },
    )


def _samples(entries: Mapping[str, Any]) -> dict[int, tuple[float, ...]]:
    return {int(size): tuple(float(ms) for ms in samples) for size, samples in entries.items()}


def _path(folder: Path, fingerprint: str) -> Path:
    return folder / f"cost-{fingerprint}.json"
