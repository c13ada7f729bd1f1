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
    min_p: Annotated[
        float,
        typer.Option(help="Leave out tokens below this share of the likeliest one."),
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: less of what is in prompt or output.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(help="-2 to 2; above 0: less of what is in the output.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="-2 to 2; above 0: less of what is often in the output.")
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(help="TOKEN_ID=BIAS, -100 to 100, added to its logit; may be repeated."),
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Outputs for each prompt.")] = 1,
    logprobs: Annotated[
        int | None,
        typer.Option(help="With --json: log-probabilities of the output and so many others."),
    ] = None,
    prompt_logprobs: Annotated[
        int | None, typer.Option(help="With --json: the same for the tokens of the prompt.")
    ] = None,
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
    from specsched_client.cli._generation_run import jobs_of, run_jobs

    if system is not None and not chat:
        raise InvalidRequestError("--system has no effect with --raw: drop one of them")
    if not json and not (logprobs is None and prompt_logprobs is None):
        raise InvalidRequestError("log-probabilities are shown by --json only: add it")
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=dict(_bias(text) for text in logit_bias or ()),
        n=n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        max_tokens=max_tokens,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
    prompts_sent = [_prompt(text, system, chat=chat) for text in texts]
    jobs = jobs_of(texts, prompts_sent, sampling.n)
    errors = asyncio.run(run_jobs(jobs, sampling, target=target, timeout_s=timeout, as_json=json))
    if errors:
        raise typer.Exit(exit_code_of(errors[0]))


def _bias(text: str) -> tuple[int, float]:
    from specsched_client import InvalidRequestError

    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise InvalidRequestError(
            f"--logit-bias {text!r}; accepted: TOKEN_ID=BIAS, as in 42=-100"
        ) from None


def _prompt(text: str, system: str | None, *, chat: bool) -> str | list[dict[str, str]]:
    if not chat or not text:
        return text
    told = [{"role": "system", "content": system}] if system is not None else []
    return [*told, {"role": "user", "content": text}]
