"""`specsched train drafter`. Importable without torch."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from specsched_protocol.exit_codes import ExitCode

__all__ = ["train"]

_MISSING_TORCH = "training needs torch, which is not installed: pip install 'specsched[executor]'"

train = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Make a drafter for a target.",
)


@train.callback()
def _group() -> None:
    """Make a drafter for a target."""


@train.command()
def drafter(  # noqa: PLR0917 - typer calls it by name
    out: Annotated[Path, typer.Option(help="Folder the checkpoint is written to")],
    run_dir: Annotated[Path, typer.Option(help="Folder of the run; the same again continues it")],
    target: Annotated[
        Path | None, typer.Option(help="GGUF or Hugging Face folder; none: the default model")
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSON-lines file or folder of them; none: only prompts the target writes"
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cuda, cpu or auto")] = "auto",
    num_tokens: Annotated[int, typer.Option(help="Tokens to generate")] = 36_000_000,
    num_slots: Annotated[int, typer.Option(help="Sequences generated at once")] = 2048,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a sequence")] = 512,
    max_answer_tokens: Annotated[int, typer.Option(help="Tokens of an answer")] = 256,
    num_steps: Annotated[int, typer.Option(help="Steps of the optimiser")] = 10_000,
    max_train_seconds: Annotated[
        float, typer.Option(help="Let the schedule end by then, whatever steps are left; 0: never")
    ] = 0.0,
    num_sequences: Annotated[int, typer.Option(help="Sequences of a step")] = 24,
    num_anchors: Annotated[int, typer.Option(help="Blocks of a sequence")] = 120,
    num_layers: Annotated[int, typer.Option(help="Layers of the drafter")] = 3,
    block_size: Annotated[int, typer.Option(help="Draft positions, k")] = 7,
    markov_rank: Annotated[int, typer.Option(help="Rank of the Markov head")] = 64,
    window: Annotated[int, typer.Option(help="Context tokens seen; 0: all")] = 128,
    target_layers: Annotated[
        str, typer.Option(help="Target layers seen, comma-separated; empty: five, evenly")
    ] = "",
    held_out_share: Annotated[float, typer.Option(help="Share of prompts never trained on")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of everything drawn")] = 20_260_705,
    max_seconds: Annotated[
        float, typer.Option(help="Stop in order after so long; the same command continues")
    ] = 540.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print how it ended as JSON")] = False,
) -> None:
    """Generate text with the target and train a DSpark drafter on it (arXiv 2607.05147)."""
    if importlib.util.find_spec("torch") is None:
        _fail(_MISSING_TORCH, ExitCode.MISSING_PACKAGE)
    from specsched_executor.model import ModelLoadError
    from specsched_executor.tokenizer import TokenizerError
    from specsched_executor.training.entry import run_training
    from specsched_executor.training.options import (
        DrafterShape,
        GenerationOptions,
        OptimizerOptions,
        TrainOptions,
    )

    try:
        layers = tuple(int(layer) for layer in target_layers.split(",") if layer)
        options = TrainOptions(
            shape=DrafterShape(
                num_layers=num_layers,
                block_size=block_size,
                markov_rank=markov_rank,
                window=window or None,
                target_layer_ids=layers or None,
            ),
            generation=GenerationOptions(
                num_tokens=num_tokens,
                num_slots=num_slots,
                max_tokens=max_tokens,
                max_answer_tokens=max_answer_tokens,
            ),
            optimizer=OptimizerOptions(
                num_steps=num_steps,
                max_train_seconds=max_train_seconds or None,
                num_sequences=num_sequences,
                num_anchors=num_anchors,
            ),
            seed=seed,
            held_out_share=held_out_share,
        )
        is_done = run_training(
            options,
            target_path=target,
            prompt_paths=prompts or [],
            run_dir=run_dir,
            out=out,
            device_name=device,
            max_seconds=max_seconds,
            say=_say,
        )
    except (ValueError, ModelLoadError, TokenizerError) as error:
        _fail(str(error))
    if not is_done:
        _say("stopped in time; the same command continues")
    if as_json:
        typer.echo(json.dumps({"is_done": is_done, "run_dir": str(run_dir), "out": str(out)}))


def _say(text: str) -> None:
    typer.echo(text, err=True)
    sys.stderr.flush()


def _fail(reason: str, status: int = ExitCode.BAD_INPUT) -> None:
    typer.echo(f"error: {reason}", err=True)
    raise typer.Exit(status)


if __name__ == "__main__":
    train()
