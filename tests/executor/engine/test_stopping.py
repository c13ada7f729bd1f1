import pytest
from specsched_executor.core import SamplingParams
from specsched_executor.drafters import NgramDrafter
from specsched_executor.engine.admission import Admission
from specsched_executor.engine.stopping import Stop, StopRules, StopStrings

from tests.executor.engine.tiny import Driver, SilentTransport, TableTarget, config, random_table

PIECES = [b"he", b"llo", b" wor", b"ld", b"\xe2\x82", b"\xac", b"!", b"l"]


class Bytes:
    """Token i is PIECES[i]; unfinished characters become U+FFFD, as in byte-level BPE."""

    def decode(self, token_ids) -> str:
        return b"".join(PIECES[token_id] for token_id in token_ids).decode(errors="replace")


def first_match(strings, token_ids):
    matcher = StopStrings(strings, Bytes())
    for index, token_id in enumerate(token_ids):
        found = matcher.feed(token_id)
        if found is not None:
            return index, found
    return None


@pytest.mark.parametrize(
    ("strings", "expected"),
    [
        (["hello"], (1, "hello")),
        (["lo wo"], (2, "lo wo")),
        (["hello world"], (3, "hello world")),
        (["e"], (0, "e")),
        (["d€"], (5, "d€")),
        (["€!"], (6, "€!")),
        (["world", "o w"], (2, "o w")),
        (["nothing"], None),
        (["�"], None),
    ],
)
def test_strings_are_found_across_token_borders(strings, expected):
    assert first_match(strings, [0, 1, 2, 3, 4, 5, 6]) == expected


def test_the_string_that_comes_first_in_the_text_is_named():
    assert first_match(["llo", "he"], [0, 1]) == (0, "he")
    assert first_match(["lo", "l"], [1]) == (0, "l")


def test_a_match_is_not_made_of_text_seen_apart():
    # "l" + "l": the tail keeps enough text, and no more.
    assert first_match(["lll"], [7, 7, 6, 7, 7]) is None
    assert first_match(["lll"], [7, 7, 7]) == (2, "lll")


def test_bytes_that_are_no_text_are_looked_at_a_few_at_a_time():
    class Counting(Bytes):
        longest = 0

        def decode(self, token_ids):
            self.longest = max(self.longest, len(token_ids))
            return super().decode(token_ids)

    decoder = Counting()
    matcher = StopStrings(["hello"], decoder)
    assert all(matcher.feed(4) is None for _ in range(1000))
    assert decoder.longest <= 64
    assert [matcher.feed(token_id) for token_id in (6, 0, 1)] == [None, None, "hello"]


def rules(**params) -> StopRules:
    return StopRules.of(SamplingParams(**params), (9,), 5, Bytes())


def test_ids_end_the_output_and_are_named_unless_eos():
    assert rules().check(9, 1) == Stop("stop")
    assert rules(stop_token_ids=(7,)).check(7, 1) == Stop("stop", 7)
    assert rules(ignore_eos=True).check(9, 1) is None
    assert rules(ignore_eos=True, stop_token_ids=(9,)).check(9, 1) == Stop("stop", 9)


def test_the_length_ends_what_nothing_else_ended():
    assert rules().check(0, 4) is None
    assert rules().check(0, 5) == Stop("length")
    assert rules().check(9, 5) == Stop("stop")


def test_stop_strings_before_min_tokens_do_not_count():
    early = rules(stop=("he",), min_tokens=2)
    assert early.check(0, 1) is None
    assert early.check(0, 2) == Stop("stop", "he")


VOCAB = 8


def driver(drafter, eos=()) -> Driver:
    made = Driver(
        TableTarget(random_table(VOCAB, 5), eos=eos), drafter, SilentTransport(), config()
    )
    made.admission = Admission(made.target.config, config(), Bytes())
    return made


@pytest.mark.parametrize("seed", range(6))
def test_tokens_past_a_stop_are_discarded(seed):
    """Stops inside an accepted draft: the output is a prefix of the one without stops."""
    free = driver(NgramDrafter(3))
    full = free.submit([1, 2, 1], seed=seed, max_tokens=40)
    free.run()
    text_at = [Bytes().decode(full.token_ids[: i + 1]) for i in range(40)]
    for stop in ("llo", "he!", "ldl"):
        stopped = driver(NgramDrafter(3))
        result = stopped.submit([1, 2, 1], seed=seed, max_tokens=40, stop=(stop,))
        stopped.run()
        ends = [i + 1 for i, text in enumerate(text_at) if stop in text]
        assert result.token_ids == full.token_ids[: ends[0] if ends else 40]
        assert result.last.matched_stop == (stop if ends else None)


def test_min_tokens_makes_stops_impossible_until_then():
    for seed in range(20):
        made = driver(NgramDrafter(3), eos=(0, 1, 2, 3))
        result = made.submit([5, 6, 5], seed=seed, max_tokens=30, min_tokens=9, stop_token_ids=(4,))
        made.run()
        assert not {0, 1, 2, 3, 4} & set(result.token_ids[:9])
        assert len(result.token_ids) > 9
