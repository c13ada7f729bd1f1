"""The default model in bfloat16 on a GPU against float32 on the CPU, and against itself in other
batches: products there round by the number of rows that they are made of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from specsched_executor.model import (
    LoadedModel,
    LoadOptions,
    ModelNotFoundError,
    default_model_path,
    load_model,
)

from tests.executor.model.batches import Driver
from tests.repository import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NUM_PROMPTS = 20
ANSWER_TOKENS = 48
MIN_AGREEMENT = 0.98
NOISE = 0.05
"""Of a row's logits among other rows, relative to their norm about the mean: a few times 2^-8."""


def prompts() -> list[str]:
    """The first turns of the benchmark's prompts, of all kinds in turn."""
    paths = sorted((ROOT / "tests" / "bench" / "prompts").glob("*.jsonl"))
    kinds = [
        [json.loads(line)["turns"][0] for line in path.read_text().splitlines()] for path in paths
    ]
    return [prompt for group in zip(*kinds, strict=False) for prompt in group][:NUM_PROMPTS]


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest) -> Path:
    given = request.config.getoption("--bench-model")
    try:
        return Path(given) if given else default_model_path()
    except ModelNotFoundError as error:
        pytest.skip(f"{error}, or say --bench-model")


@pytest.fixture(scope="module")
def on_gpu(path: Path) -> LoadedModel:
    return load_model(path, LoadOptions(device="cuda", dtype="bfloat16"))


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def driver_of(model: LoadedModel, num_tokens: int) -> Driver:
    return Driver(model.model, num_blocks=num_tokens // 16 + 128)


def answered(model: LoadedModel) -> list[tuple[int, torch.Tensor]]:
    """Greedy answers, all prompts side by side: length of the prompt, and all tokens."""
    encoded = [
        torch.tensor(model.tokenizer.encode_chat([{"role": "user", "content": prompt}]))
        for prompt in prompts()
    ]
    room = [torch.cat([tokens, tokens.new_zeros(ANSWER_TOKENS)]) for tokens in encoded]
    driver = driver_of(model, sum(map(len, room)))
    sequences = [driver.sequence(tokens) for tokens in room]
    counts = [len(tokens) for tokens in encoded]
    for _ in range(ANSWER_TOKENS):
        logits, _ = driver.run(list(zip(sequences, counts, strict=True)))
        for sequence, rows in zip(sequences, logits, strict=True):
            sequence.token_ids[sequence.done] = rows[-1].argmax()
        counts = [1] * len(sequences)
    return [(len(e), s.token_ids) for e, s in zip(encoded, sequences, strict=True)]


def test_the_likeliest_token_is_that_of_the_cpu_nearly_always(
    path: Path, on_gpu: LoadedModel
) -> None:
    """Teacher-forced: at each place of an answer both models have read the same tokens."""
    on_cpu = load_model(path, LoadOptions(dtype="float32"))
    num_equal = num_places = 0
    for prompt_length, tokens in answered(on_gpu):
        likeliest = []
        for model in (on_gpu, on_cpu):
            driver = driver_of(model, len(tokens))
            logits, _ = driver.run([(driver.sequence(tokens), len(tokens))])
            likeliest.append(logits[0][prompt_length - 1 : -1].argmax(dim=-1).cpu())
        num_equal += int((likeliest[0] == likeliest[1]).sum())
        num_places += len(likeliest[0])
    print(f"\n{num_equal} of {num_places} likeliest tokens agree")
    assert num_places == NUM_PROMPTS * ANSWER_TOKENS
    assert num_equal >= MIN_AGREEMENT * num_places


@pytest.mark.parametrize("num_beside", [0, 7, 63])
def test_a_row_has_the_same_logits_verified_alone_or_in_a_draft_up_to_rounding(
    on_gpu: LoadedModel, num_beside: int
) -> None:
    """Eight tokens one by one, as without drafts, and at once, as a draft that is verified."""
    length, tokens = answered(on_gpu)[0]
    expected, *others = (
        rows_in_pieces(on_gpu, [tokens] * (1 + num_beside), length, pieces)
        for pieces in ([1] * 8, [8], [3, 5])
    )
    spread = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1)
    best = expected.topk(2, dim=-1).values
    for found in others:
        noise = float(((found - expected).norm(dim=-1) / spread).max())
        print(f"\nbeside {num_beside} others a row's logits differ by up to {noise:.2%}")
        assert noise < NOISE
        # Where the likeliest tokens differ, the two were as good as equal.
        differs = found.argmax(dim=-1) != expected.argmax(dim=-1)
        largest_error = (found - expected).abs().amax(dim=-1)
        assert ((best[:, 0] - best[:, 1])[differs] <= 2 * largest_error[differs]).all()


def rows_in_pieces(
    model: LoadedModel, batch: list[torch.Tensor], prompt_length: int, pieces: list[int]
) -> torch.Tensor:
    """Logits of the first request's rows after the prompt, run in pieces of so many."""
    driver = driver_of(model, sum(map(len, batch)))
    sequences = [driver.sequence(tokens) for tokens in batch]
    driver.run([(sequence, prompt_length) for sequence in sequences])
    return torch.cat([driver.run([(s, n) for s in sequences])[0][0] for n in pieces])
