"""Which sizes are captured."""

from specsched_executor.device import GraphSizes, default_rows


def test_steps_with_prompts_are_captured_in_the_sizes_that_are_priced():
    rows = default_rows(256, 7, 2048)
    sizes = GraphSizes.of(rows, max_requests=256, max_draft_tokens=7)
    assert sizes.prompt_rows == tuple(size for size in sizes.rows if size >= 16)


def test_few_sizes_of_an_operator_still_leave_short_prompts_short_steps():
    sizes = GraphSizes.of([1, 100, 300], max_requests=64, max_draft_tokens=7)
    assert sizes.prompt_rows == (16, 32, 64, 100, 128, 256, 300)
