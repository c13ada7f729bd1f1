"""`specsched eval drafter`. Importable without torch."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from specsched_protocol.exit_codes import ExitCode
from specsched_protocol.picture import PICTURE_FILE, PictureError, check_picture, save_picture

__all__ = ["evaluate"]

_MISSING_TORCH = "evaluating needs torch, which is not installed: pip install 'specsched[executor]'"

evaluate = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@evaluate.callback()
def _group() -> None:
    """Measure a drafter by real generation."""


@evaluate.command()
def drafter(  # noqa: PLR0917 - typer calls it by name
    prompts: Annotated[list[Path], typer.Option(help="JSON-lines file or folder of them")],
    model: Annotated[
        Path | None, typer.Option(help="GGUF or Hugging Face folder; none: the default model")
    ] = None,
    drafter: Annotated[str, typer.Option(help="ngram or dspark")] = "dspark",
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder of a dspark drafter; none: the shipped one")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of all requests; 0: greedy")] = 1.0,
    limit: Annotated[int | None, typer.Option(help="The first so many of each source")] = None,
    held_out_share: Annotated[
        float | None, typer.Option(help="Only prompts that training with this share kept back")
    ] = None,
    max_draft_tokens: Annotated[int, typer.Option(help="Draft positions, k")] = 7,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer")] = 256,
    max_prompt_tokens: Annotated[int, typer.Option(help="Longer prompts are left out")] = 1024,
    num_seqs: Annotated[int, typer.Option(help="Requests at once")] = 16,
    calibration: Annotated[
        Path | None, typer.Option(help="Calibration to report beside the raw confidences")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write confidences and outcomes to this file, .npz")
    ] = None,
    diagram: Annotated[
        Path | None, typer.Option(help=f"Draw a reliability diagram to this file: {PICTURE_FILE}")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON")] = False,
) -> None:
    """Answer prompts with the target and tell how many drafts it accepted."""
    if importlib.util.find_spec("torch") is None:
        _fail(_MISSING_TORCH, ExitCode.MISSING_PACKAGE)
    if trace is not None:
        _check_trace(trace)
    if diagram is not None:
        with _telling_of_pictures():
            check_picture("--diagram", diagram)
    from specsched_executor.core import RequestError
    from specsched_executor.evaluation.calibration_file import CalibrationFile
    from specsched_executor.evaluation.generation import GenerationError
    from specsched_executor.evaluation.report import report_lines
    from specsched_executor.evaluation.run import EvaluationOptions, evaluate_drafter
    from specsched_executor.model import ModelLoadError
    from specsched_executor.serve.progress import progress_bar
    from specsched_executor.tokenizer import TokenizerError

    try:
        options = EvaluationOptions(
            model=model,
            drafter=drafter,
            checkpoint=checkpoint,
            prompts=prompts,
            temperature=temperature,
            limit=limit,
            held_out_share=held_out_share,
            max_draft_tokens=max_draft_tokens,
            max_tokens=max_tokens,
            max_prompt_tokens=max_prompt_tokens,
            num_seqs=num_seqs,
        )
        fitted = None if calibration is None else CalibrationFile.read(calibration)
        with progress_bar("answering") as progress:
            report = evaluate_drafter(options, calibration=fitted, trace=trace, progress=progress)
    except (OSError, ValueError, RequestError, ModelLoadError, TokenizerError) as error:
        _fail(str(error))
    except GenerationError as error:
        _fail(str(error), status=1)
    if as_json:
        typer.echo(json.dumps(report, allow_nan=False))
    else:
        for line in report_lines(report):
            typer.echo(line)
    if diagram is not None:
        from specsched_executor.evaluation.diagram import reliability_figure

        with _telling_of_pictures():
            save_picture("--diagram", reliability_figure(report), diagram)


def _check_trace(path: Path) -> None:
    if path.suffix != ".npz" or path.is_dir() or not path.parent.is_dir():
        _fail(f"--trace {path}; accepted: a file that ends in .npz, in a folder that is there")


@contextlib.contextmanager
def _telling_of_pictures() -> Iterator[None]:
    """End the command with one line where a picture cannot be drawn."""
    try:
        yield
    except PictureError as error:
        _fail(str(error), error.exit_code)


def _fail(reason: str, status: int = ExitCode.BAD_INPUT) -> None:
    typer.echo(f"error: {reason}", err=True)
    raise typer.Exit(status)
