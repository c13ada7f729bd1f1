"""What the wire says and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import common_pb2
from specsched_executor.core import RequestError, SamplingParams
from specsched_executor.gateway.requests import to_generation_request


def convert(**sampling: Any) -> SamplingParams:
    wire = pb.GenerateRequest(request_id="a", sampling_params=pb.SamplingParams(**sampling))
    return to_generation_request(wire, [1, 2]).sampling


def test_nothing_set_means_the_defaults_of_the_api() -> None:
    assert convert() == SamplingParams(temperature=1.0, top_p=1.0, top_k=0)


def test_everything_accepted_arrives() -> None:
    assert convert(
        temperature=0.0,
        top_p=0.5,
        top_k=5,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=0.75,
        logit_bias={5: -100, 3: 1.5},
        n=3,
        logprobs=0,
        prompt_logprobs=2,
        seed=-3,
        max_tokens=0,
        min_tokens=2,
        stop=["x", "yz"],
        stop_token_ids=[4],
        include_stop_str_in_output=True,
        ignore_eos=True,
    ) == SamplingParams(
        temperature=0.0,
        top_p=0.5,
        top_k=5,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=0.75,
        logit_bias=((3, 1.5), (5, -100.0)),
        n=3,
        logprobs=0,
        prompt_logprobs=2,
        seed=-3,
        max_tokens=0,
        min_tokens=2,
        stop=("x", "yz"),
        stop_token_ids=(4,),
        include_stop_str_in_output=True,
        ignore_eos=True,
    )


def test_a_missing_id_is_made_up() -> None:
    first, second = (to_generation_request(pb.GenerateRequest(), [1]) for _ in range(2))
    assert first.request_id
    assert first.request_id != second.request_id


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("truncate_prompt_tokens", -1),
        ("json_schema", "{}"),
        ("regex", "a*"),
        ("grammar", "root ::= x"),
        ("structural_tag", "{}"),
        ("json_object", True),
        ("choice", pb.ChoiceConstraint(choices=["x"])),
        ("grammar_from_first_token", True),
    ],
)
def test_sampling_that_could_not_take_effect_is_refused(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=rf"sampling_params\.{name}"):
        convert(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_transfer_params", pb.KvTransferParams(remote_port=1)),
        ("kv_transfer_params_json", "{}"),
        ("mm_inputs", pb.MultimodalInputs(im_token_id=1)),
        ("extra_mm_inputs", [pb.MultimodalInputs()]),
        ("media_refs", pb.MediaRefs(items=[pb.MediaRef(modality=common_pb2.IMAGE, url="x")])),
        ("data_parallel_rank", 1),
    ],
)
def test_fields_that_could_not_take_effect_are_refused(name: str, value: object) -> None:
    wire = pb.GenerateRequest(request_id="a")
    field: Any = {name: value}
    wire.MergeFrom(pb.GenerateRequest(**field))
    with pytest.raises(RequestError, match=name):
        to_generation_request(wire, [1])


def test_every_field_of_the_api_is_either_used_or_refused() -> None:
    """A field that a later release of the API adds must be decided on, not dropped in silence."""
    used = {
        "temperature",
        "top_p",
        "top_k",
        "max_tokens",
        "min_tokens",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "n",
        "logprobs",
        "prompt_logprobs",
        "logit_bias",
        "stop",
        "stop_token_ids",
        "seed",
        "ignore_eos",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "spaces_between_special_tokens",
    }
    refused = {
        "truncate_prompt_tokens",
        "json_schema",
        "regex",
        "grammar",
        "structural_tag",
        "json_object",
        "choice",
        "grammar_from_first_token",
    }
    assert {field.name for field in pb.SamplingParams.DESCRIPTOR.fields} == used | refused
    assert {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields} == {
        "request_id",
        "tokenized",
        "text",
        "sampling_params",
        "stream",
        "kv_transfer_params",
        "mm_inputs",
        "extra_mm_inputs",
        "kv_transfer_params_json",
        "data_parallel_rank",
        "media_refs",
    }
