"""A random target with a chat template and a few prompts, small enough to train for in seconds."""

from __future__ import annotations

import json

from specsched_executor.training.options import (
    DrafterShape,
    GenerationOptions,
    OptimizerOptions,
    TrainOptions,
)

from tests.executor.model.checkpoints import random_model, save_folder

TEMPLATE = "{% for m in messages %}t5 {{ m['content'] }} t2 t6 {% endfor %}"


def make_target(folder):
    save_folder(random_model("llama"), folder)
    config = {"eos_token": "t2", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def make_prompts(path, num=40):
    texts = [" ".join(f"t{(i * j) % 150 + 3}" for j in range(8)) for i in range(1, num + 1)]
    path.write_text("\n".join(json.dumps({"turns": [text]}) for text in texts) + "\n")
    return path


def options(num_steps=40, **changes):
    return TrainOptions(
        shape=DrafterShape(num_layers=1, block_size=4, markov_rank=8, window=16, num_features=2),
        generation=GenerationOptions(
            num_tokens=500, num_slots=6, max_tokens=48, max_answer_tokens=20, max_user_tokens=10
        ),
        optimizer=OptimizerOptions(num_steps=num_steps, num_sequences=3, num_anchors=8),
        **changes,
    )
