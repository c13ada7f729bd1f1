"""Plans of sweeps: what they say and what they make of it."""

from __future__ import annotations

import json

import pytest
from specsched_executor.presets import PRESETS
from specsched_scheduler.decision import Feature
from specsched_scheduler.policies import build_policy

from scripts.arguments import split_arguments
from scripts.prove.edit_profile import edited
from scripts.prove.plan import ROOT, PlanError, read_plan
from scripts.prove.random_drafter import drafter_config

PLANS = sorted((ROOT / "scripts" / "prove").glob("*.toml"))
TRIAL = """
[[part]]
name = "trial"
prompts = ["tests/bench/prompts/chat.jsonl", "tests/bench/prompts/code.jsonl"]
concurrency = [1, 8]
fixed = [2]
max_seconds = 30
seed = 3
half_width = 0.02
every_setting = true
"""


def write(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return path


def test_a_part_is_a_sweep_over_prompts_in_turn(tmp_path):
    (part,) = read_plan(write(tmp_path, TRIAL))
    options = part.options(tmp_path / "out")
    assert options[options.index("--max-seconds") + 1] == "30.0"
    assert [options[i + 1] for i, name in enumerate(options) if name == "--concurrency"] == [
        "1",
        "8",
    ]
    assert options[options.index("--seed") + 1] == "3"
    assert options[options.index("--half-width") + 1] == "0.02"
    assert "--settle-seconds" not in options
    assert options[-1] == "--every-setting"
    prompts = (tmp_path / "out" / "prompts.jsonl").read_text().splitlines()
    chat, code = (
        (ROOT / "tests" / "bench" / "prompts" / f"{kind}.jsonl").read_text().splitlines()
        for kind in ("chat", "code")
    )
    assert [json.loads(line) for line in prompts[:4]] == [
        json.loads(line) for line in (chat[0], code[0], chat[1], code[1])
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no part"),
        (TRIAL + TRIAL, "two parts have one name"),
        (TRIAL + "speed = 3", "Extra inputs"),
        ("[[part", "plan.toml"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(tmp_path, text, said):
    with pytest.raises(PlanError, match=said):
        read_plan(write(tmp_path, text))


def test_parts_are_chosen_by_name(tmp_path):
    path = write(tmp_path, TRIAL)
    assert [part.name for part in read_plan(path, ["trial"])] == ["trial"]
    with pytest.raises(PlanError, match="--part other; accepted: trial"):
        read_plan(path, ["other"])


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_plans_that_ship_are_sound(path, tmp_path):
    for part in read_plan(path):
        assert part.options(tmp_path / part.name)
        for policy in (part.policy, *part.against):
            build_policy(policy)


@pytest.mark.parametrize("name", ["gpu", "gpu_8b"])
def test_each_feature_is_left_out_once(name):
    (part,) = read_plan(ROOT / "scripts" / "prove" / f"{name}.toml", ["features"])
    left_out = [build_policy(policy).rule.left_out for policy in part.against]
    assert sorted(filter(None, left_out)) == sorted(Feature)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_drafter_is_shaped_like_its_target(preset):
    config = drafter_config(PRESETS[preset])
    assert config.vocab_size == PRESETS[preset]["vocab_size"]
    assert config.hidden_size == PRESETS[preset]["hidden_size"]
    assert config.target_layer_ids[-1] < config.num_target_layers


def test_a_drafter_for_latent_attention_has_grouped_heads():
    config = drafter_config(PRESETS["deepseek-v32-h200"])
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (56, 7, 128)
    assert config.target_layer_ids == (0, 1, 3, 4, 5)


def test_options_of_another_command_follow_two_dashes():
    assert split_arguments(["a", "--", "--b", "--"]) == (["a"], ["--b", "--"])
    assert split_arguments(["a"]) == (["a"], [])


def test_a_wrong_profile_differs_where_it_is_told_to():
    profile = {"verify_ms": {"1": [1.0, 1.2], "8": [3.0]}, "context_ms_per_token": 0.5, "format": 1}
    assert edited(profile) == profile
    assert edited(profile, slope=2.0)["verify_ms"] == {"1": [1.0, 1.4], "8": [5.0]}
    assert edited(profile, scale=2.0, spike_rows=8)["verify_ms"] == {"1": [2.0, 2.4], "8": [60.0]}
    assert edited(profile, no_context=True) == {**profile, "context_ms_per_token": 0.0}
