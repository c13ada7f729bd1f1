"""What drafting on the device costs, by requests and length."""

from __future__ import annotations

import torch
from specsched_executor.core import TargetOutput
from specsched_executor.device import build_device_parts
from specsched_executor.device.profile import profile_device
from specsched_executor.profiling import ProfileOptions

from tests.executor.device.tiny import GRAPHS, DeviceTableDrafter, PaddedTarget
from tests.executor.engine.test_lossless import VOCAB
from tests.executor.engine.tiny import config, random_table


class Target(PaddedTarget):
    """Takes rows of any content: those of a profile are nobody's."""

    def forward(self, batch, kv_cache):
        return TargetOutput(torch.zeros(len(batch.logit_rows), self.config.vocab_size))


def test_captured_numbers_of_requests_and_lengths_are_timed():
    sizes = config()
    table = random_table(VOCAB, 0)
    drafter = DeviceTableDrafter(table[1], sizes.max_num_seqs, sizes.max_draft_tokens)
    parts = build_device_parts(Target(table), drafter, sizes, GRAPHS)
    parts.graphs.capture_all()
    options = ProfileOptions(
        sizes=(1, 4, 16),
        capture_limit=16,
        max_requests=sizes.max_num_seqs,
        max_draft_tokens=sizes.max_draft_tokens,
        context_tokens=16,
        long_context_tokens=32,
        block_size=sizes.block_size,
        min_rounds=1,
        max_rounds=2,
    )
    profile = profile_device(parts, options, "mark")
    assert set(profile.draft) == set(GRAPHS.draft_requests)
    assert {length: set(costs) for length, costs in profile.short_drafts.items()} == {
        2: set(GRAPHS.draft_requests)
    }
    replayed = {(shape.padded_requests, shape.num_tokens) for shape in parts.graphs._draft}
    assert replayed == {(n, length) for n in GRAPHS.draft_requests for length in (2, 3)}
