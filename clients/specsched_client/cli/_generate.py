"""`specsched generate`."""

from __future__ import annotations

from typing import Annotated

import typer

from specsched_client.cli._exit_codes import exit_code_of
from specsched_client.cli._options import DEFAULT_TARGET, JsonOption, TargetOption

PromptArgument = Annotated[list[str], typer.Argument(help='Prompts; "-" reads one from stdin.')]


def generate(
    prompts: PromptArgument,
    *,
    target: TargetOption = DEFAULT_TARGET,
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="A user's turn of a conversation, or plain text.")
    ] = True,
    system: Annotated[
        str | None, typer.Option(help="What the model is told first (with --chat).")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from this much probability.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most, per prompt.")] = 256,
    seed: Annotated[int | None, typer.Option(help="Makes the output repeatable.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="String that ends the output; may be repeated.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on to the limit.")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds for each prompt.")] = None,
    json: JsonOption = False,
) -> None:
    """Complete prompts, all at once, and show their text as it comes.

    With several prompts the exit code is that of the first one that failed.
    """
    import asyncio
    import sys

    from specsched_client import InvalidRequestError, Sampling
    from specsched_client.cli._generation_run import Job, run_jobs

    if system is not None and not chat:
        raise InvalidRequestError("--system has no effect with --raw: drop one of them")
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_tokens=max_tokens,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
    jobs = [
        Job(index=index, title=text, prompt=_prompt(text, system, chat=chat))
        for index, text in enumerate(texts)
    ]
    errors = asyncio.run(run_jobs(jobs, sampling, target=target, timeout_s=timeout, as_json=json))
    if errors:
        raise typer.Exit(exit_code_of(errors[0]))


def _prompt(text: str, system: str | None, *, chat: bool) -> str | list[dict[str, str]]:
    if not chat or not text:
        return text
    told = [{"role": "system", "content": system}] if system is not None else []
    return [*told, {"role": "user", "content": text}]
