"""The cached form of token files: its bytes, reading it back, and what is said about damage."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from megatron.data.indexed_dataset import MMapIndexedDatasetBuilder, make_dataset
from megatron.errors import DataError

DOCUMENTS = [[1, 2, 3], [], [70_000], [5, 6, 7, 8]]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    with MMapIndexedDatasetBuilder(tmp_path / "d.bin", "<i4", impl="cached") as builder:
        for document in DOCUMENTS:
            builder.add_item(document)
            builder.end_document()
        builder.finalize(tmp_path / "d.idx")
    return tmp_path / "d"


def test_the_bytes_are_those_of_the_format(prefix: Path) -> None:
    assert prefix.with_suffix(".bin").read_bytes() == struct.pack(
        "<8i", 1, 2, 3, 70_000, 5, 6, 7, 8
    )
    assert prefix.with_suffix(".idx").read_bytes() == (
        b"TNTIDX\x00\x00"
        + struct.pack("<6Q", 1, 4, 4, 4, 4, 5)
        + struct.pack("<5q", 0, 1, 2, 3, 4)  # dim offsets
        + struct.pack("<5q", 0, 3, 3, 4, 8)  # data offsets
        + struct.pack("<4q", 3, 0, 1, 4)  # sizes
        + struct.pack("<5q", 0, 1, 2, 3, 4)  # document index
    )


@pytest.mark.parametrize("impl", ["infer", "cached"])
def test_it_is_read_back(prefix: Path, impl: str) -> None:
    data = make_dataset(prefix, impl)
    assert [row.tolist() for row in data] == DOCUMENTS
    assert data.doc_idx.tolist() == [0, 1, 2, 3, 4]
    assert [data.tokens_between(a, b) for a, b in [(0, 4), (1, 3), (3, 4)]] == [8, 1, 4]
    assert data.get(3, 1, 2).tolist() == [6, 7]
    assert pickle.loads(pickle.dumps(data))[2].tolist() == [70_000]
    data.verify()


def test_both_forms_merge_into_either(prefix: Path, tmp_path: Path) -> None:
    with MMapIndexedDatasetBuilder(tmp_path / "m.bin", np.int32) as builder:
        builder.merge_file_(prefix)
        builder.finalize(tmp_path / "m.idx")
    with MMapIndexedDatasetBuilder(tmp_path / "c.bin", np.int32, impl="cached") as builder:
        builder.merge_file_(tmp_path / "m")
        builder.finalize(tmp_path / "c.idx")
    assert [row.tolist() for row in make_dataset(tmp_path / "m", "mmap")] == DOCUMENTS
    assert (tmp_path / "c.idx").read_bytes() == prefix.with_suffix(".idx").read_bytes()


def test_the_form_holds_int32_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the cached form holds int32, not uint16"):
        MMapIndexedDatasetBuilder(tmp_path / "u.bin", np.uint16, impl="cached")
    assert not (tmp_path / "u.bin").exists()


def message(prefix: Path, impl: str = "infer") -> str:
    with pytest.raises(DataError) as caught:
        make_dataset(prefix, impl)
    return str(caught.value)


def test_damage_is_said_with_both_numbers(prefix: Path) -> None:
    index, data = prefix.with_suffix(".idx"), prefix.with_suffix(".bin")
    whole = index.read_bytes()
    assert "set data_impl to infer" in message(prefix, "mmap")
    index.write_bytes(whole[:-8])
    assert f"has {len(whole) - 8} bytes" in message(prefix)
    assert f"asks for {len(whole)}" in message(prefix)
    index.write_bytes(whole[:40])
    assert "has 40 bytes, its header alone takes 56" in message(prefix)
    index.write_bytes(whole[:24] + struct.pack("<Q", 2) + whole[32:])
    assert "elements of 2 bytes" in message(prefix)
    index.write_bytes(whole)
    data.write_bytes(data.read_bytes()[:-4])
    assert "has 28 bytes" in message(prefix)
    assert "asks for 32" in message(prefix)


def test_verify_finds_damage_inside(prefix: Path) -> None:
    index = prefix.with_suffix(".idx")
    whole = bytearray(index.read_bytes())
    sizes = 56 + 8 * 10
    whole[sizes : sizes + 8] = struct.pack("<q", 2)
    index.write_bytes(whole)
    with pytest.raises(
        DataError, match="sequence 1 has size 0 and starts at token 3, expected token 2"
    ):
        make_dataset(prefix).verify()


def test_rows_of_other_shapes_are_refused(prefix: Path) -> None:
    path = Path(f"{prefix}.idx")
    raw = bytearray(path.read_bytes())
    count = int.from_bytes(raw[32:40], "little")
    raw[32:40] = (count - 1).to_bytes(
        8, "little"
    )  # of two dimensions the sizes would be more than rows
    raw[40:48] = (count + 2).to_bytes(8, "little")
    path.write_bytes(raw)
    assert "these are no rows of tokens" in message(prefix)
