from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import typer.testing
from specsched_executor.drafters.dspark import load_checkpoint
from specsched_executor.training.command import train
from specsched_executor.training.corpus import Corpus
from specsched_executor.training.entry import run_training
from specsched_executor.training.network import TrainableDrafter
from specsched_executor.training.options import GenerationOptions
from specsched_executor.training.prompts import OpenTurn, is_held_out, open_turn, read_prompts
from specsched_executor.training.sampler import PromptBank, Sampler
from specsched_executor.training.target import load_training_target
from specsched_executor.training.trainer import Trainer, _schedule

from .tiny import make_prompts, make_target, options

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    make_target(folder / "target")
    make_prompts(folder / "prompts.jsonl")
    return folder


@pytest.fixture(scope="module")
def target(folder):
    return load_training_target(folder / "target", CPU, torch.float32, 64)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(folder, name, wanted, max_seconds=300.0):
    said = []
    is_done = run_training(
        wanted,
        target_path=folder / "target",
        prompt_paths=[folder / "prompts.jsonl"],
        run_dir=folder / name,
        out=folder / f"{name}-out",
        device_name="cpu",
        max_seconds=max_seconds,
        say=said.append,
    )
    return is_done, said


def test_a_run_ends_with_a_checkpoint_and_its_manifest(folder):
    is_done, _ = run(folder, "whole", options())
    assert is_done
    checkpoint = load_checkpoint(folder / "whole-out")
    assert checkpoint.config.window == 16
    assert checkpoint.tensors["markov_head.markov_w2.weight"].abs().max() > 0
    manifest = json.loads((folder / "whole-out" / "manifest.json").read_text())
    assert manifest["num_steps_done"] == 40
    assert manifest["held_out_text"]["teacher_forced"] is True
    held_out = [p for p in read_prompts([folder / "prompts.jsonl"]) if is_held_out(p, 0.1)]
    assert held_out
    assert manifest["held_out_prompts"]["sha256"] == sorted(p.digest for p in held_out)
    used = manifest["text"]["prompts_by_source"]["prompts"]
    assert used == 40 - len(held_out)


def test_a_run_without_time_leaves_off_in_order_and_refuses_other_options(folder):
    is_done, _ = run(folder, "short", options(), max_seconds=0.0)
    assert not is_done
    with pytest.raises(ValueError, match="other optimizer"):
        run(folder, "short", options(num_steps=41))


def make_trainer(target, corpus, wanted):
    from specsched_executor.training.run import drafter_config

    torch.manual_seed(4)
    model, tokenizer = target
    config = drafter_config(model, tokenizer, wanted.shape)
    network = TrainableDrafter(config, model.embedding, torch.float32)
    return network, Trainer(network, model, corpus, wanted)


@pytest.fixture(scope="module")
def corpus(target):
    """Text that is easy to learn: the same few tokens over and over."""
    corpus = Corpus(12, 48, CPU)
    tokens = torch.arange(3, 51).repeat(12, 1)
    corpus.add(tokens, torch.full((12,), 48), torch.full((12,), 6), torch.ones(12))
    return corpus


def test_pieces_train_what_one_run_trains(target, corpus, tmp_path):
    wanted = options(num_steps=40)
    network, whole = make_trainer(target, corpus, wanted)
    whole.run(lambda: True, lambda _: None)
    _, first = make_trainer(target, corpus, wanted)
    first.run(lambda: False, lambda _: None)
    assert 0 < first.step < 40
    first.save(tmp_path / "state.pt")
    other, second = make_trainer(target, corpus, wanted)
    second.load(tmp_path / "state.pt")
    second.run(lambda: True, lambda _: None)
    assert second.is_done
    for name, tensor in network.tensors().items():
        torch.testing.assert_close(other.tensors()[name], tensor, rtol=1e-4, atol=1e-5)


def test_the_schedule_ends_in_time(target, corpus):
    wanted = options(num_steps=100_000)
    wanted = replace(wanted, optimizer=replace(wanted.optimizer, max_train_seconds=0.5))
    _, trainer = make_trainer(target, corpus, wanted)
    trainer.run(lambda: True, lambda _: None)
    assert trainer.is_done
    assert 0 < trainer.step < 100_000


def test_the_learning_rate_rises_then_falls_to_nothing():
    shares = [_schedule(step / 100, 0.01, 0.1) for step in range(100)]
    assert shares[0] == pytest.approx(0.1)
    assert max(shares) == pytest.approx(shares[10]) == pytest.approx(1.0)
    assert shares[10:] == sorted(shares[10:], reverse=True)
    assert shares[-1] < 0.001


def test_training_learns(target, corpus):
    _, trainer = make_trainer(target, corpus, options(num_steps=200))
    found = []
    trainer.run(lambda: True, found.append)
    first, last = found[0], found[-1]
    assert last.loss < 0.9 * first.loss
    assert last.acceptance > first.acceptance + 0.05
    # The confidence head follows what it is trained on.
    assert abs(last.confidence - last.acceptance) < 0.05


def test_held_out_prompts_are_a_matter_of_text_alone(folder):
    prompts = read_prompts([folder / "prompts.jsonl"])
    kept = {p.text for p in prompts if is_held_out(p, 0.3)}
    assert 0 < len(kept) < len(prompts)
    assert kept == {p.text for p in reversed(prompts) if is_held_out(p, 0.3)}
    assert {p.text for p in prompts if is_held_out(p, 0.1)} <= kept


def test_prompts_may_hold_line_separators(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": "a\u2028b"}, ensure_ascii=False) + "\n")
    assert [p.text for p in read_prompts([path])] == ["a\u2028b"]


@pytest.mark.parametrize("line", ["{", "[]", '{"turns": []}', '{"prompt": ""}', "3"])
def test_a_line_without_a_prompt_is_named(tmp_path, line):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n' + line)
    with pytest.raises(ValueError, match=r"p\.jsonl:2"):
        read_prompts([path])


def test_the_template_is_taken_apart_around_the_user(target):
    turn = open_turn(target[1])
    assert (turn.prefix, turn.suffix) == ((5,), (2, 6))


def test_a_turn_the_target_writes_is_closed_as_the_template_does(target):
    model, _ = target
    wanted = GenerationOptions(
        num_tokens=400, num_slots=16, max_tokens=64, max_answer_tokens=12, max_user_tokens=40
    )
    torch.manual_seed(1)
    # An end that comes often, so that turns end at all with random weights.
    turn = OpenTurn((5,), (int(_frequent_token(model)), 6, 7))
    corpus = Corpus(64, 64, CPU)
    sampler = Sampler(model, wanted, PromptBank([], []), turn, [2])
    sampler.fill(corpus, 400, lambda: True)
    assert corpus.num_sequences > 3
    for row in range(corpus.num_sequences):
        tokens = corpus._tokens[row].tolist()
        start, length = int(corpus._answer_starts[row]), int(corpus._lengths[row])
        assert tokens[0] == 5
        assert tuple(tokens[start - 3 : start]) == turn.suffix
        assert turn.suffix[0] not in tokens[1 : start - 3]
        assert 1 <= length - start <= 12
        assert 2 not in tokens[start : length - 1]


def _frequent_token(model):
    states = model.sequences(torch.tensor([[5, 9, 11, 30, 44]]), (0,))
    return torch.nn.functional.linear(states.final[0], model.head).softmax(-1).mean(0).argmax()


def test_greedy_answers_are_what_the_model_says(target):
    model, _ = target
    wanted = GenerationOptions(
        num_tokens=60, num_slots=2, max_tokens=32, max_answer_tokens=16, temperatures=((0.0, 1.0),)
    )
    corpus = Corpus(8, 32, CPU)
    Sampler(model, wanted, PromptBank([[5, 9, 17, 2, 6]], [1.0]), None, [2]).fill(
        corpus, 60, lambda: True
    )
    length = int(corpus._lengths[0])
    tokens = corpus._tokens[:1, :length].long()
    states = model.sequences(tokens, (0,))
    expected = torch.nn.functional.linear(states.final[0], model.head).argmax(-1)
    assert tokens[0, 5:].tolist() == expected[4:-1].tolist()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "tpu"], "device is 'tpu'"),
        (["--num-steps", "0"], "num_steps is 0"),
        (["--target", "/nowhere.gguf"], "nowhere"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, arguments, said):
    result = typer.testing.CliRunner().invoke(
        train,
        ["drafter", "--out", str(tmp_path / "o"), "--run-dir", str(tmp_path / "r"), *arguments],
    )
    assert result.exit_code == 2
    assert said in result.output
