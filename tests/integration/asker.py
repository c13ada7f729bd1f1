"""Asks an executor from inside its network namespace: one JSON line in, one out.

In: {"questions": [...], "max_tokens": n}, asked all at once. Out: {"answers": [[token id, ...],
...], "seconds": s, "planned": steps, "fallbacks": {reason: steps}, "failed": requests and steps}.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from specsched_client import Client, Sampling


def _counts(client: Client) -> Counter[str]:
    counters = client.step_counters().counters
    return Counter(
        {
            "planned": counters.num_planned_steps,
            "failed": counters.num_failed_requests + counters.num_failed_steps,
            **{f"fallback {name}": n for name, n in counters.num_fallback_steps.items()},
        }
    )


def _answer(client: Client, questions: list[str], max_tokens: int) -> dict[str, object]:
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)

    def ask(question: str) -> list[int]:
        messages = [{"role": "user", "content": question}]
        return list(client.generate(messages, sampling, timeout_s=240).token_ids)

    before, begun = _counts(client), time.monotonic()
    with ThreadPoolExecutor(len(questions)) as pool:
        answers = list(pool.map(ask, questions))
    seconds = time.monotonic() - begun
    new = _counts(client) - before
    fallbacks = {
        key.removeprefix("fallback "): n for key, n in new.items() if key.startswith("fallback ")
    }
    return {
        "answers": answers,
        "seconds": seconds,
        "planned": new["planned"],
        "fallbacks": fallbacks,
        "failed": new["failed"],
    }


def main() -> None:
    with Client(sys.argv[1]) as client:
        for line in sys.stdin:
            print(json.dumps(_answer(client, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
