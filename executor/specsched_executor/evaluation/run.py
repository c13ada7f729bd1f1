"""From the command line's values to a report."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsched_executor.drafters import DrafterSetting, create_drafter
from specsched_executor.drafters.shipped import shipped_checkpoint
from specsched_executor.evaluation.calibration_file import CalibrationFile
from specsched_executor.evaluation.generation import evaluation_sizes, generate_answers
from specsched_executor.evaluation.report import build_report, save_trace
from specsched_executor.model import load_model
from specsched_executor.training.prompts import (
    Prompt,
    encode_prompts,
    is_held_out,
    read_prompts,
)

__all__ = ["EvaluationOptions", "evaluate_drafter"]


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """What to run.

    checkpoint: of dspark; None takes the one that ships for the model. limit: prompts per source.
    held_out_share: only prompts that training with this share keeps back; None takes all.
    """

    model: Path | None
    drafter: str
    checkpoint: Path | None
    prompts: Sequence[Path]
    temperature: float = 1.0
    limit: int | None = None
    held_out_share: float | None = None
    max_draft_tokens: int = 7
    max_tokens: int = 256
    max_prompt_tokens: int = 1024
    num_seqs: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise ValueError(f"temperature is {self.temperature}; accepted: 0 to 100")
        if self.drafter != "dspark" and self.checkpoint is not None:
            raise ValueError(f"checkpoint has no effect with drafter {self.drafter}: drop it")


def evaluate_drafter(
    options: EvaluationOptions,
    *,
    calibration: CalibrationFile | None = None,
    trace: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Answer the prompts and report. progress: called with (prompts answered, all of them).

    Raises ValueError, ModelLoadError, TokenizerError or GenerationError.
    """
    loaded = load_model(options.model)
    chosen = _choose(options)
    encoded = encode_prompts(loaded.tokenizer, chosen)
    fitting = [
        (prompt, ids)
        for prompt, ids in zip(chosen, encoded, strict=True)
        if len(ids) <= options.max_prompt_tokens
    ]
    if not fitting:
        raise ValueError(
            f"no prompt of at most {options.max_prompt_tokens} tokens among the {len(chosen)} given"
        )
    wanted = options.max_prompt_tokens + options.max_tokens
    context = min(loaded.config.max_context_tokens, wanted)
    sizes = evaluation_sizes(options.num_seqs, options.max_draft_tokens, context)
    setting = None
    if options.drafter == "dspark":
        checkpoint = options.checkpoint or shipped_checkpoint(loaded.config)
        if checkpoint is None:
            raise ValueError(f"no dspark drafter ships for {loaded.config.name!r}: give checkpoint")
        setting = DrafterSetting(checkpoint, loaded.model, options.num_seqs, context)
    drafter = create_drafter(options.drafter, options.max_draft_tokens, setting)
    answers = generate_answers(
        loaded,
        drafter,
        [ids for _, ids in fitting],
        sizes,
        temperature=options.temperature,
        max_tokens=options.max_tokens,
        on_end=_counter(len(fitting), progress),
    )
    sources = [prompt.source for prompt, _ in fitting]
    prompt_tokens = [len(ids) for _, ids in fitting]
    if trace is not None:
        save_trace(trace, answers.outcomes, sources, prompt_tokens, temperature=options.temperature)
    report = build_report(
        answers.outcomes,
        sources,
        prompt_tokens,
        temperature=options.temperature,
        calibration=calibration,
    )
    num_output = sum(len(ids) for ids in answers.token_ids)
    return {
        "drafter": options.drafter,
        "max_draft_tokens": options.max_draft_tokens,
        "num_output_tokens": num_output,
        "num_left_out_prompts": len(chosen) - len(fitting),
        **report,
    }


def _counter(total: int, progress: Callable[[int, int], None] | None) -> Callable[[], None]:
    done = itertools.count(1)

    def count() -> None:
        if progress is not None:
            progress(next(done), total)

    return count


def _choose(options: EvaluationOptions) -> list[Prompt]:
    prompts = read_prompts(options.prompts)
    if options.held_out_share is not None:
        prompts = [prompt for prompt in prompts if is_held_out(prompt, options.held_out_share)]
    taken: dict[str, int] = {}
    chosen = []
    for prompt in prompts:
        taken[prompt.source] = taken.get(prompt.source, 0) + 1
        if options.limit is None or taken[prompt.source] <= options.limit:
            chosen.append(prompt)
    return chosen
