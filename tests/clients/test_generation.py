"""Requests and responses of one generation, without a wire."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto import vllm_engine_pb2 as pb
from specsched_client import InvalidRequestError, Sampling, ServerError
from specsched_client._generation import Generation, needs_text, whole_of
from specsched_client._stop_text import StopTrimmer


class LetterCodec:
    """Token id n is the n-th letter."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def encode_chat(self, messages: Sequence[Any]) -> list[int]:
        return self.encode("|".join(message["content"] for message in messages))

    def decoder(self) -> LetterCodec:
        return self

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def flush(self) -> str:
        return ""


def chunk(text: str) -> pb.GenerateResponse:
    ids = LetterCodec().encode(text)
    return pb.GenerateResponse(chunk=pb.GenerateStreamChunk(token_ids=ids))


def complete(text: str, **fields: Any) -> pb.GenerateResponse:
    fields.setdefault("finish_reason", "stop")
    ids = LetterCodec().encode(text)
    return pb.GenerateResponse(complete=pb.GenerateComplete(output_ids=ids, **fields))


def generation(sampling: Sampling | None = None, *, stream: bool = True) -> Generation:
    return Generation("prompt", sampling or Sampling(), LetterCodec(), stream=stream)


def test_stream_and_whole_output_agree() -> None:
    streamed = generation()
    deltas = [streamed.feed(each) for each in (chunk("ab"), chunk("c"), complete("abc"))]
    assert [delta.text for delta in deltas] == ["ab", "c", ""]
    assert [delta.token_ids for delta in deltas] == [(97, 98), (99,), ()]
    whole = whole_of([generation(stream=False).feed(complete("abc"))])
    assert (whole.text, whole.token_ids) == ("abc", (97, 98, 99))
    assert whole_of(deltas).text == whole.text


def test_counts_and_reasons_are_the_servers() -> None:
    done = generation().feed(
        complete(
            "ab",
            finish_reason="length",
            prompt_tokens=6,
            completion_tokens=2,
            spec_draft_tokens=5,
            spec_accepted_tokens=4,
        )
    )
    completion = whole_of([done])
    assert completion.finish_reason == "length"
    assert (completion.num_prompt_tokens, completion.num_output_tokens) == (6, 2)
    assert (completion.num_draft_tokens, completion.num_accepted_tokens) == (5, 4)
    assert completion.matched_stop is None


@pytest.mark.parametrize("stop", [{"matched_token_id": 0}, {"matched_stop_str": "ab"}])
def test_what_stopped_the_output_is_told(stop: dict[str, Any]) -> None:
    completion = whole_of([generation().feed(complete("ab", **stop))])
    assert completion.matched_stop == next(iter(stop.values()))


def test_stop_strings_are_never_shown_not_even_in_part() -> None:
    streamed = generation(Sampling(stop=("END", "x")))
    deltas = [
        streamed.feed(each)
        for each in (
            chunk("oneE"),
            chunk("two"),
            chunk("EN"),
            chunk("Dz"),
            complete("oneEtwoENDz", matched_stop_str="END"),
        )
    ]
    assert [delta.text for delta in deltas] == ["one", "Etwo", "", "", ""]
    assert whole_of(deltas).text == "oneEtwo"


def test_stop_strings_are_shown_when_asked_for() -> None:
    streamed = generation(Sampling(stop=("END",), include_stop=True))
    deltas = [streamed.feed(chunk("aEND")), streamed.feed(complete("aEND", matched_stop_str="END"))]
    assert [delta.text for delta in deltas] == ["aEND", ""]


def test_a_stop_string_ignored_by_min_tokens_is_text() -> None:
    streamed = generation(Sampling(stop=("END",), min_tokens=9))
    texts = [
        streamed.feed(each).text
        for each in (
            chunk("aEND"),
            chunk("b"),
            chunk("END"),
            complete("aENDbEND", matched_stop_str="END"),
        )
    ]
    assert texts == ["a", "ENDb", "", ""]
    whole = generation(Sampling(stop=("END",), min_tokens=9), stream=False)
    last = whole.feed(complete("aENDbEND", matched_stop_str="END"))
    assert last.text == "aENDb"


@given(text=st.text("abX", max_size=30), cuts=st.lists(st.integers(0, 30), max_size=6))
def test_trimming_does_not_depend_on_how_the_text_is_cut(text: str, cuts: list[int]) -> None:
    stops = ("abX", "Xb")
    found = [(text.find(each) + len(each), text.find(each), each) for each in stops if each in text]
    # As an engine does: the output ends with the first stop string that is complete.
    end, begin, matched = min(found, default=(len(text), len(text), None))
    trimmer = StopTrimmer(stops, first_counts=True)
    borders = sorted({0, end, *(cut for cut in cuts if cut < end)})
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    shown = "".join(map(trimmer.push, pieces)) + trimmer.finish("", matched)
    assert shown == text[:begin]


def test_the_request_carries_what_was_asked_for() -> None:
    sampling = Sampling(
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        seed=0,
        max_tokens=7,
        min_tokens=2,
        stop=("a", "b"),
        stop_token_ids=(5,),
        ignore_eos=True,
    )
    request = Generation([1, 2], sampling, None, stream=True, request_id="r").request
    assert (request.request_id, request.stream) == ("r", True)
    assert list(request.tokenized.input_ids) == [1, 2]
    params = request.sampling_params
    assert (params.temperature, params.top_k, params.max_tokens, params.seed) == (0.5, 3, 7, 0)
    assert (params.min_tokens, params.ignore_eos) == (2, True)
    assert params.HasField("seed")
    assert params.top_p == pytest.approx(0.9)
    assert (list(params.stop), list(params.stop_token_ids)) == (["a", "b"], [5])


def test_what_is_not_asked_for_stays_unset() -> None:
    params = Generation([1], Sampling(), None, stream=True).request.sampling_params
    assert not params.HasField("seed")
    assert not params.HasField("max_tokens")


def test_conversations_use_the_chat_template() -> None:
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    request = Generation(messages, Sampling(), LetterCodec(), stream=True).request
    assert bytes(request.tokenized.input_ids) == b"a|b"


def test_token_ids_need_no_tokenizer_and_give_no_text() -> None:
    ids = Generation([1, 2], Sampling(), None, stream=True)
    assert ids.feed(chunk("a")).text is None
    assert whole_of([ids.feed(complete("ab"))]).text is None


@pytest.mark.parametrize(
    ("prompt", "expected"), [("x", True), ([3], False), ([{"role": "user"}], True)]
)
def test_which_prompts_need_a_tokenizer(prompt: Any, *, expected: bool) -> None:
    assert needs_text(prompt) is expected


@pytest.mark.parametrize("prompt", ["", [], ()])
def test_empty_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        needs_text(prompt)


@pytest.mark.parametrize("token_id", [-1, 2**32, "x"])
def test_bad_token_ids_are_named(token_id: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"token id {token_id!r}"):
        Generation([1, token_id], Sampling(), None, stream=True)


def test_a_stream_that_breaks_off_is_an_error() -> None:
    broken = generation()
    broken.feed(chunk("a"))
    with pytest.raises(ServerError, match="before the output was complete"):
        broken.end()
    with pytest.raises(ServerError, match="before the output was complete"):
        whole_of([])


def test_a_response_without_content_is_an_error() -> None:
    with pytest.raises(ServerError, match="expected a chunk"):
        generation().feed(pb.GenerateResponse())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("seed", 2**31),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("stop", ("",)),
        ("stop_token_ids", (-1,)),
    ],
)
def test_bad_sampling_is_refused_by_name(name: str, value: Any) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(InvalidRequestError, match=f"{name} = .*; accepted: "):
        Sampling(**options)
