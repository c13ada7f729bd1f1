import hypothesis.strategies as st
from hypothesis import given
from specsched_executor.drafters.suffix_index import Match, SuffixIndex


def naive_find(history, min_length, max_length, max_measured):
    for length in range(max_length, min_length - 1, -1):
        if length >= len(history):
            continue
        suffix = history[-length:]
        for start in range(len(history) - 1, length - 1, -1):
            if history[start - length : start] == suffix:
                longest = length
                while (
                    longest < min(max_measured, start)
                    and history[start - longest - 1] == history[-longest - 1]
                ):
                    longest += 1
                return Match(start, longest)
    return None


@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(1, 5), max_size=20))
def test_incremental_search_equals_a_scan(tokens, growth):
    index = SuffixIndex(2, 4, 8)
    history: list[int] = []
    for size in [*growth, len(tokens)]:
        history.extend(tokens[len(history) : len(history) + size])
        assert index.find(history) == naive_find(history, 2, 4, 8)


def test_the_latest_occurrence_wins():
    assert SuffixIndex(1, 2, 8).find([1, 2, 5, 1, 2, 6, 1, 2]) == Match(start=5, length=2)


def test_the_longest_suffix_wins_over_a_later_short_one():
    assert SuffixIndex(1, 3, 8).find([1, 2, 3, 7, 3, 8, 1, 2, 3]) == Match(start=3, length=3)
