"""The GGUF container: what is read, and what damaged or foreign files say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from specsched_executor.model import ModelFormatError, UnsupportedModelError, load_model
from specsched_executor.model.gguf.container import GgufFile
from specsched_executor.model.gguf.quantization import TENSOR_TYPES, dequantize

from tests.executor.model.checkpoints import gguf_metadata, gguf_tensors, random_model, save_gguf
from tests.executor.model.gguf_writer import F32, write_gguf


def test_metadata_of_every_type(tmp_path):
    path = tmp_path / "m.gguf"
    values = {"text": "aé", "flag": True, "count": 7, "ratio": 0.5, "names": ["x", ""], "ids": [1]}
    write_gguf(path, values, {})
    file = GgufFile(path)
    assert file.metadata == values
    file.close()


@pytest.mark.parametrize("keep", [0, 3, 23, 30, 200, 5000])
def test_truncated_at_any_place(tmp_path, keep):
    path = save_gguf(random_model(), tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelFormatError, match=r"tiny.gguf: .*(truncated|no GGUF file)"):
        load_model(path)


def test_truncated_data_names_the_tensor(tmp_path):
    path = save_gguf(random_model(), tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(ModelFormatError, match=r"truncated, \d+ bytes, but tensor 'output.weight'"):
        load_model(path)


def test_foreign_file(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelFormatError, match=r"model.gguf: starts with b'PK.*GGUF"):
        load_model(path)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"general.architecture": "mamba"}, UnsupportedModelError, "'mamba'; served: llama, qwen3"),
        (
            {"tokenizer.ggml.model": "llama"},
            UnsupportedModelError,
            "tokenizer 'llama'; read: 'gpt2'",
        ),
        ({"tokenizer.ggml.pre": "tekken"}, UnsupportedModelError, "'tekken'; read: .*smollm"),
        ({"llama.rope.scaling.type": "yarn"}, UnsupportedModelError, "'yarn' in GGUF; read: none"),
        ({"llama.block_count": 4}, ModelFormatError, "tensor 'blk.3.attn_norm.weight' is missing"),
        ({"llama.feed_forward_length": 64}, ModelFormatError, r"has shape \(128, 96\), expected"),
    ],
)
def test_what_is_refused(tmp_path, changes, error, message):
    path = save_gguf(random_model(), tmp_path / "tiny.gguf", **changes)
    with pytest.raises(error, match=message):
        load_model(path)


def test_unknown_version_and_tensor_type(tmp_path):
    model = random_model()
    path = tmp_path / "tiny.gguf"
    write_gguf(path, gguf_metadata(model), gguf_tensors(model, F32), version=9)
    with pytest.raises(UnsupportedModelError, match="GGUF version 9; versions 2 and 3"):
        load_model(path)
    tensors = gguf_tensors(model, F32)
    shape, _, data = tensors["blk.1.ffn_up.weight"]
    tensors["blk.1.ffn_up.weight"] = (shape, 23, data)
    write_gguf(path, gguf_metadata(model), tensors)
    with pytest.raises(UnsupportedModelError, match=r"has GGML type 23; read: F32, F16, Q4_0"):
        load_model(path)


def test_missing_metadata(tmp_path):
    model = random_model()
    metadata = gguf_metadata(model)
    del metadata["llama.context_length"]
    write_gguf(tmp_path / "tiny.gguf", metadata, gguf_tensors(model, F32))
    with pytest.raises(ModelFormatError, match=r"metadata 'llama\.context_length' is missing"):
        load_model(tmp_path / "tiny.gguf")


# ===================== Storage types =====================
# Scalar decoders after ggml-quants.c, one element at a time.


def half(block, at):
    return float(np.frombuffer(bytes(block[at : at + 2]), np.float16)[0])


def nibble(block, start, j):
    return int(block[start + j]) & 15 if j < 16 else int(block[start + j - 16]) >> 4


def fifth_bit(block, start, j):
    word = int.from_bytes(bytes(block[start : start + 4]), "little")
    return ((word >> j) & 1) << 4


def q4_k(block, j):
    sub = j // 32
    packed = [int(x) for x in block[4:16]]
    if sub < 4:
        scale, low = packed[sub] & 63, packed[sub + 4] & 63
    else:
        scale = (packed[sub + 4] & 15) | ((packed[sub - 4] >> 6) << 4)
        low = (packed[sub + 4] >> 4) | ((packed[sub] >> 6) << 4)
    byte = int(block[16 + j // 64 * 32 + j % 32])
    quant = byte & 15 if j % 64 < 32 else byte >> 4
    return half(block, 0) * scale * quant - half(block, 2) * low


def q6_k(block, j):
    part, inner = divmod(j, 128)
    quarter, lane = divmod(inner, 32)
    low = int(block[64 * part + lane + 32 * (quarter % 2)])
    low = low & 15 if quarter < 2 else low >> 4
    high = (int(block[128 + 32 * part + lane]) >> (2 * quarter)) & 3
    scale = int(np.int8(np.uint8(block[192 + j // 16])))
    return half(block, 208) * scale * ((low | (high << 4)) - 32)


SCALAR = {
    2: lambda b, j: (nibble(b, 2, j) - 8) * half(b, 0),
    3: lambda b, j: nibble(b, 4, j) * half(b, 0) + half(b, 2),
    6: lambda b, j: ((nibble(b, 6, j) | fifth_bit(b, 2, j)) - 16) * half(b, 0),
    7: lambda b, j: (nibble(b, 8, j) | fifth_bit(b, 4, j)) * half(b, 0) + half(b, 2),
    8: lambda b, j: int(np.int8(np.uint8(b[2 + j]))) * half(b, 0),
    12: q4_k,
    14: q6_k,
}


@pytest.mark.parametrize("type_id", sorted(SCALAR))
def test_block_decoders(type_id):
    kind = TENSOR_TYPES[type_id]
    raw = torch.randint(0, 256, (3, 5 * kind.block_bytes), dtype=torch.uint8)
    scale_at = {12: (0, 2), 14: (208,)}.get(type_id, (0, 2) if type_id in (3, 7) else (0,))
    blocks = raw.view(-1, kind.block_bytes)
    for at in scale_at:
        blocks[:, at : at + 2] = torch.rand(15, 1).half().view(torch.uint8)
    out = torch.empty(3, 5 * kind.block_elements)
    dequantize(kind, raw, out)
    expected = [
        [SCALAR[type_id](block, j) for j in range(kind.block_elements)] for block in blocks.numpy()
    ]
    torch.testing.assert_close(out.view(15, -1), torch.tensor(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("type_id", "dtype"), [(0, torch.float32), (1, torch.float16), (30, torch.bfloat16)]
)
def test_plain_types(type_id, dtype):
    weights = torch.randn(5, 7).to(dtype)
    out = torch.empty(5, 7)
    dequantize(TENSOR_TYPES[type_id], weights.view(torch.uint8).view(5, -1), out)
    assert torch.equal(out, weights.float())


def test_pieces_join(monkeypatch):
    from specsched_executor.model.gguf import quantization

    kind = TENSOR_TYPES[8]
    raw = torch.randint(0, 256, (40, kind.block_bytes), dtype=torch.uint8)
    raw[:, :2] = torch.rand(40, 1).half().view(torch.uint8)
    whole, pieces = torch.empty(40, 32), torch.empty(40, 32)
    dequantize(kind, raw, whole)
    monkeypatch.setattr(quantization, "_PIECE_ELEMENTS", 3 * 32)
    dequantize(kind, raw, pieces)
    assert torch.equal(whole, pieces)
