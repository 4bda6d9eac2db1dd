"""The container: what GGUFReader reads, and one clear line for everything that is wrong with a file."""

from __future__ import annotations

import re
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdec.models.gguf_file import GGUFFile
from tests.models.gguf_writing import equal_bits, gguf_bytes, gguf_string, gguf_tensor, gguf_value

U8, U32, STRING, ARRAY, U64 = 0, 4, 8, 9, 10
TENSOR = gguf_tensor("t", [8], 0, 0)
DATA = np.arange(8, dtype="<f4").tobytes()


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with every value type and several tensor types."""
    path = tmp_path_factory.mktemp("gguf") / "sample.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint8("n.u8", 200)
    writer.add_int8("n.i8", -100)
    writer.add_uint16("n.u16", 60000)
    writer.add_int16("n.i16", -30000)
    writer.add_uint32("n.u32", 4_000_000_000)
    writer.add_int32("n.i32", -2_000_000_000)
    writer.add_uint64("n.u64", 2**63 + 1)
    writer.add_int64("n.i64", -(2**62))
    writer.add_float32("n.f32", 0.1)
    writer.add_float64("n.f64", 0.1)
    writer.add_bool("n.yes", True)
    writer.add_bool("n.no", False)
    writer.add_string("s.text", "naïve 文字 🙂")
    writer.add_string("s.empty", "")
    writer.add_array("a.strings", ["a", "", "Ġthe", "日本"])
    writer.add_array("a.ints", [3, -1, 2])
    writer.add_array("a.floats", [0.5, -1.25])
    writer.add_array("a.flags", [True, False, True])
    weights = np.random.default_rng(0).normal(size=(3, 2, 64)).astype(np.float32)
    writer.add_tensor("f32", weights)
    writer.add_tensor("f16", weights[0].astype(np.float16))
    for kind in (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0, GGMLQuantizationType.BF16):
        writer.add_tensor(kind.name, quants.quantize(weights[:, 0], kind), raw_dtype=kind)
    blocks = np.random.default_rng(1).integers(0, 256, (2, 3, 210), dtype=np.uint8)
    blocks[..., 208:] = np.array([0.5], "<f2").view(np.uint8)
    writer.add_tensor("Q6_K", blocks, raw_dtype=GGMLQuantizationType.Q6_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def header_size(sample: Path) -> int:
    return min(info.offset for info in GGUFFile(sample).tensors.values())


def written(folder: Path, data: bytes) -> Path:
    path = folder / "made.gguf"
    path.write_bytes(data)
    return path


def refusal(path: Path) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        GGUFFile(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_metadata_equals_the_readers(sample: Path) -> None:
    expected = {
        name: field.contents() for name, field in GGUFReader(sample).fields.items() if not name.startswith("GGUF.")
    }
    metadata = GGUFFile(sample).metadata
    assert metadata == expected
    assert list(metadata) == list(expected)
    assert {name: type(value) for name, value in metadata.items()} == {
        name: type(value) for name, value in expected.items()
    }


def test_tensors_equal_the_readers(sample: Path) -> None:
    file, reader = GGUFFile(sample), GGUFReader(sample)
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        info, weights = file.tensors[tensor.name], file.read(tensor.name)
        assert info.shape == tuple(reversed(tensor.shape.tolist())) == tuple(weights.shape)
        assert (info.offset, info.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert info.kind.name == tensor.tensor_type.name
        assert weights.dtype == torch.float32
        assert equal_bits(weights, quants.dequantize(tensor.data, tensor.tensor_type))


def test_a_slice_is_an_entry_of_the_first_dimension(sample: Path) -> None:
    file = GGUFFile(sample)
    for name in file.tensors:
        whole = file.read(name)
        for index in range(len(whole)):
            assert torch.equal(file.read(name, index), whole[index])


def test_what_is_read_belongs_to_the_caller(sample: Path) -> None:
    file, before = GGUFFile(sample), sample.read_bytes()
    for name in file.tensors:
        first = file.read(name)
        expected = first.clone()
        first.fill_(7.0)
        assert torch.equal(file.read(name), expected)
    assert sample.read_bytes() == before


def test_version_2_and_other_alignments(tmp_path: Path) -> None:
    data = gguf_bytes([gguf_value("k", U32, struct.pack("<I", 5))], [TENSOR], DATA, version=2)
    file = GGUFFile(written(tmp_path, data))
    assert file.metadata == {"k": 5}
    assert file.read("t").tolist() == list(range(8))
    values = [gguf_value("general.alignment", U32, struct.pack("<I", 128))]
    head = gguf_bytes(values, [TENSOR])
    file = GGUFFile(written(tmp_path, head + bytes(-len(head) % 128) + DATA))
    assert file.tensors["t"].offset % 128 == 0
    assert file.read("t").tolist() == list(range(8))


def test_an_unaligned_tensor_is_read(tmp_path: Path) -> None:
    data = gguf_bytes([], [gguf_tensor("t", [8], 0, 3)], b"xyz" + DATA)
    assert GGUFFile(written(tmp_path, data)).read("t").tolist() == list(range(8))


def test_an_empty_model_is_a_file_too(tmp_path: Path) -> None:
    file = GGUFFile(written(tmp_path, gguf_bytes()))
    assert (file.metadata, file.tensors) == ({}, {})


def one_value(kind: int, payload: bytes) -> bytes:
    return gguf_bytes([gguf_value("some.key", kind, payload)])


def one_array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return one_value(ARRAY, struct.pack("<IQ", kind, count) + payload)


FAULTS = {
    "empty": (b"", "not a GGUF file"),
    "short magic": (b"GG", "not a GGUF file"),
    "other file": (b"PK\x03\x04" + bytes(60), "not a GGUF file: it starts with b'PK"),
    "only magic": (b"GGUF", "truncated"),
    "no counts": (b"GGUF" + struct.pack("<IQ", 3, 0), "truncated"),
    "version 1": (gguf_bytes(version=1), "version 1 is not supported .supported: 2 and 3"),
    "version 4": (gguf_bytes(version=4), "version 4 is not supported"),
    "big-endian": (gguf_bytes(version=3 << 24), "big-endian"),
    "too many values": (gguf_bytes(counts=(0, 2**63)), "cannot hold 9223372036854775808 metadata values"),
    "too many tensors": (gguf_bytes(counts=(2**63, 0)), "cannot hold 9223372036854775808 tensors"),
    "unknown value type": (one_value(13, bytes(8)), "metadata 'some.key': unknown value type 13"),
    "array of arrays": (one_array(ARRAY, 1, bytes(12)), "metadata 'some.key': array of unknown value type 9"),
    "array of unknown": (one_array(77, 1, bytes(8)), "array of unknown value type 77"),
    "endless numbers": (one_array(U8, 2**40), "truncated .* needs 1099511627776 bytes"),
    "endless strings": (one_array(STRING, 2**62), "truncated"),
    "endless string": (one_value(STRING, struct.pack("<Q", 2**60)), "metadata 'some.key': truncated"),
    "endless key": (gguf_bytes([struct.pack("<Q", 2**64 - 1) + bytes(16)]), "truncated"),
    "not UTF-8": (one_value(STRING, gguf_string(b"ab\xff")), "not UTF-8"),
    "key not UTF-8": (gguf_bytes([gguf_value(b"\xc3\x28", U32, bytes(4))]), "not UTF-8"),
    "key twice": (gguf_bytes([gguf_value("k", U8, b"\1")] * 2), "metadata key 'k' appears twice"),
    "tensor twice": (gguf_bytes([], [TENSOR, TENSOR], DATA), "tensor 't' appears twice"),
    "no dimension": (gguf_bytes([], [gguf_tensor("t", [], 0, 0)], DATA), "0 dimensions"),
    "five dimensions": (gguf_bytes([], [gguf_tensor("t", [1] * 5, 0, 0)], DATA), "5 dimensions"),
    "endless dimensions": (gguf_bytes([], [gguf_string("t") + b"\xff" * 64], DATA), "4294967295 dimensions"),
    "size zero": (gguf_bytes([], [gguf_tensor("t", [8, 0], 0, 0)], DATA), "shape .0, 8. is not made of whole F32"),
    "part of a block": (gguf_bytes([], [gguf_tensor("t", [48], 3, 0)], DATA), "whole Q4_1 blocks of 32"),
    "refused type": (gguf_bytes([], [gguf_tensor("t", [256], 16, 0)], DATA), "type IQ2_XXS, which is not supported"),
    "unknown type": (gguf_bytes([], [gguf_tensor("t", [256], 99, 0)], DATA), r"type unknown \(99\)"),
    "removed type": (gguf_bytes([], [gguf_tensor("t", [32], 4, 0)], DATA), r"type unknown \(4\)"),
    "data cut": (gguf_bytes([], [TENSOR], DATA[:-1]), "truncated GGUF file: tensor 't' ends at byte"),
    "offset outside": (gguf_bytes([], [gguf_tensor("t", [8], 0, 2**63)], DATA), "tensor 't' ends at byte"),
    "endless tensor": (gguf_bytes([], [gguf_tensor("t", [2**63] * 4, 0, 0)], DATA), "tensor 't' ends at byte"),
    "alignment 3": (
        gguf_bytes([gguf_value("general.alignment", U32, struct.pack("<I", 3))]),
        "general.alignment must be a power of two; got 3",
    ),
    "alignment 0": (gguf_bytes([gguf_value("general.alignment", U32, bytes(4))]), "power of two; got 0"),
    "alignment text": (
        gguf_bytes([gguf_value("general.alignment", STRING, gguf_string("32"))]),
        "power of two; got '32'",
    ),
    "alignment beyond": (
        gguf_bytes([gguf_value("general.alignment", U64, struct.pack("<Q", 2**62))], [TENSOR], DATA),
        "tensor 't' ends at byte",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named_and_cost_nothing(fault: str, tmp_path: Path) -> None:
    data, message = FAULTS[fault]
    path = written(tmp_path, data)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message):
            GGUFFile(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    refusal(path)
    assert peak < 1_000_000


def test_a_path_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot read" in refusal(tmp_path / "absent.gguf")
    assert "cannot read" in refusal(tmp_path)


def test_every_truncation_is_refused(sample: Path, tmp_path: Path) -> None:
    whole = sample.read_bytes()
    last = max(GGUFFile(sample).tensors.values(), key=lambda info: info.offset)
    for size in (*range(0, 1200), *range(1200, last.offset + last.num_bytes, 131), last.offset + last.num_bytes - 1):
        message = refusal(written(tmp_path, whole[:size]))
        assert "truncated" in message or "not a GGUF file" in message


def opened_or_refused(path: Path) -> None:
    """Either every tensor can be read, or the file is refused in one line."""
    try:
        file = GGUFFile(path)
    except ValueError:
        refusal(path)
    else:
        for name, info in file.tensors.items():
            assert file.read(name).shape == info.shape


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_header_bytes_give_a_file_or_a_refusal(
    data: st.DataObject, sample: Path, header_size: int, tmp_path: Path
) -> None:
    damaged = bytearray(sample.read_bytes())
    flips = st.lists(st.tuples(st.integers(0, header_size - 1), st.integers(1, 255)), min_size=1, max_size=4)
    for at, change in data.draw(flips):
        damaged[at] ^= change
    opened_or_refused(written(tmp_path, bytes(damaged)))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tail=st.binary(max_size=200), num_tensors=st.integers(0, 3), num_values=st.integers(0, 3))
def test_random_bytes_behind_a_good_start(tail: bytes, num_tensors: int, num_values: int, tmp_path: Path) -> None:
    opened_or_refused(written(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_values) + tail))
