"""Compare a running executor with a running llama.cpp server: same prompts, greedy, same lengths.

    python -m scripts.compare_llama_cpp --url http://127.0.0.1:8080 --target 127.0.0.1:50051 \
        --prompts tests/bench/prompts/code.jsonl --output result.json

Rounds alternate. Both servers get the same token ids, from the executor's chat template, and answer
each with as many tokens as were asked for. docs/benchmarks/README.md says how to start them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specsched_client import AsyncClient, Sampling
from specsched_client.bench.load import ClosedLoop
from specsched_client.bench.machine import describe_machine, versions
from specsched_client.bench.prompts import encode_prompts, read_prompts
from specsched_client.bench.round import run_round
from specsched_client.bench.sender import Workload
from specsched_client.bench.statistics import paired_ratio


def main() -> None:
    options = _options()
    result = asyncio.run(_compare(options))
    text = json.dumps(result, indent=2) + "\n"
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")
    print(text, end="")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True, help="llama.cpp server")
    parser.add_argument("--target", required=True, help="executor, host:port")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--num-requests", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


async def _compare(options: argparse.Namespace) -> dict[str, Any]:
    async with AsyncClient(options.target) as client:
        prompts = encode_prompts(read_prompts(options.prompts), await client.tokenizer())
        sampling = Sampling(temperature=0, max_tokens=options.max_tokens, ignore_eos=True)
        work = Workload(prompts, options.num_requests, sampling)
        load = ClosedLoop(options.concurrency)
        ours: list[float] = []
        theirs: list[float] = []
        for repeat in range(-1, options.repeats):  # the first round warms up
            speeds = [await _ours(client, load, work), await _theirs(options.url, load, work)]
            if repeat >= 0:
                ours.append(speeds[0])
                theirs.append(speeds[1])
        server = await client.server_info()
    return {
        "command": [Path(sys.executable).name, "-m", "scripts.compare_llama_cpp", *sys.argv[1:]],
        "machine": asdict(describe_machine()),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "versions": versions(),
        "executor_dtype": server.model_dtype,
        "llama_cpp": _facts(options.url),
        "tokens_per_s": {"executor": ours, "llama_cpp": theirs},
        "ratio_executor_to_llama_cpp": asdict(paired_ratio(ours, theirs)),
    }


async def _ours(client: AsyncClient, load: ClosedLoop, work: Workload) -> float:
    started_s = time.monotonic()
    records = await run_round(client, load, work)
    return sum(r.num_output_tokens for r in records) / (time.monotonic() - started_s)


async def _theirs(url: str, load: ClosedLoop, work: Workload) -> float:
    indexes = iter(range(work.num_requests))
    num_tokens = 0

    async def user() -> None:
        nonlocal num_tokens
        for index in indexes:
            num_tokens += await asyncio.to_thread(_complete, url, work, work.prompt(index))

    started_s = time.monotonic()
    await asyncio.gather(*(user() for _ in range(load.concurrency)))
    return num_tokens / (time.monotonic() - started_s)


def _complete(url: str, work: Workload, prompt: Sequence[int]) -> int:
    body = {
        "prompt": list(prompt),
        "n_predict": work.sampling.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return int(json.load(response)["tokens_predicted"])


def _facts(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/props") as response:
        props = json.load(response)
    return {
        "build": props["build_info"],
        "num_slots": props["total_slots"],
        "model": Path(props["model_path"]).name,
    }


if __name__ == "__main__":
    main()
