"""Token files: the bytes on disk, reading them back, and what is said about damaged ones."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from megatron.data.indexed_dataset import (
    DTYPES,
    MMapIndexedDataset,
    MMapIndexedDatasetBuilder,
    best_fitting_dtype,
    make_dataset,
)
from megatron.errors import DataError
from tests.data.token_files import write_documents

DOCUMENTS = [[1, 2, 3], [4], [5, 6, 7, 8]]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "d", DOCUMENTS)


def test_the_bytes_are_those_of_the_format(prefix: Path) -> None:
    assert prefix.with_suffix(".bin").read_bytes() == struct.pack("<8H", *range(1, 9))
    assert prefix.with_suffix(".idx").read_bytes() == (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, 3, 4)
        + struct.pack("<3i", 3, 1, 4)
        + struct.pack("<3q", 0, 6, 8)
        + struct.pack("<4q", 0, 1, 2, 3)
    )


@pytest.mark.parametrize("code", sorted(DTYPES))
def test_every_type_is_read_back(tmp_path: Path, code: int) -> None:
    data = make_dataset(write_documents(tmp_path / "t", DOCUMENTS, DTYPES[code]))
    assert data.dtype == DTYPES[code]
    assert [row.tolist() for row in data] == DOCUMENTS
    assert (tmp_path / "t.idx").read_bytes()[17] == code


def test_reading_by_number_slice_and_part(prefix: Path) -> None:
    data = make_dataset(str(prefix), "mmap")
    assert len(data) == 3
    assert data.num_tokens == 8
    assert data[np.int64(2)].tolist() == [5, 6, 7, 8]
    assert data[np.uint16(1)].tolist() == [4]
    assert data[-1].tolist() == [5, 6, 7, 8]
    assert [row.tolist() for row in data[::2]] == [[1, 2, 3], [5, 6, 7, 8]]
    assert data.get(2, offset=1, length=2).tolist() == [6, 7]
    assert data.get(0, offset=3).tolist() == []
    assert [data.tokens_between(a, b) for a, b in [(0, 3), (1, 2), (2, 2), (1, 3)]] == [8, 1, 0, 5]
    with pytest.raises(IndexError, match="sequence 3 of 3"):
        data[3]
    with pytest.raises(IndexError, match="tokens 1 to 4 of sequence 0, which has 3"):
        data.get(0, 1, 3)
    with pytest.raises(ValueError, match="read-only"):
        data[0][0] = 9


def test_sequences_and_documents_may_differ(tmp_path: Path) -> None:
    with MMapIndexedDatasetBuilder(tmp_path / "s.bin", np.int32) as builder:
        builder.add_item([1])
        builder.add_item([2, 3])
        builder.end_document()
        builder.add_documents(np.array([4, 5, 6], np.int64), [1, 2])
        builder.finalize(tmp_path / "s.idx")
    data = make_dataset(tmp_path / "s")
    assert data.sizes.tolist() == [1, 2, 1, 2]
    assert data.doc_idx.tolist() == [0, 2, 3, 4]
    data.verify()


def test_merging_keeps_the_document_index(tmp_path: Path, prefix: Path) -> None:
    with MMapIndexedDatasetBuilder(tmp_path / "m.bin", np.uint16) as builder:
        builder.merge_file_(prefix)
        builder.merge_file_(prefix)
        builder.finalize(tmp_path / "m.idx")
    data = make_dataset(tmp_path / "m")
    assert [row.tolist() for row in data] == DOCUMENTS * 2
    assert data.doc_idx.tolist() == [0, 1, 2, 3, 4, 5, 6]
    data.verify()
    with (
        MMapIndexedDatasetBuilder(tmp_path / "w.bin", np.int32) as builder,
        pytest.raises(DataError, match="holds uint16"),
    ):
        builder.merge_file_(prefix)


def test_an_empty_file_is_whole(tmp_path: Path) -> None:
    data = make_dataset(write_documents(tmp_path / "e", []))
    assert len(data) == 0
    assert data.num_tokens == 0
    data.verify()


def test_ids_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with MMapIndexedDatasetBuilder(tmp_path / "o.bin", np.uint16) as builder:
        builder.add_item([65_535])
        with pytest.raises(DataError, match="65536 does not fit into uint16"):
            builder.add_item([1, 65_536])
        with pytest.raises(DataError, match="-1 does not fit"):
            builder.add_item([-1])
    assert not (tmp_path / "o.idx").exists()
    assert best_fitting_dtype(65_499) == np.uint16
    assert best_fitting_dtype(65_500) == np.int32
    assert best_fitting_dtype() == np.int32


def test_no_descriptor_is_kept_and_pickling_sends_the_prefix(prefix: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    data = [make_dataset(prefix) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before
    sent = pickle.dumps(data[0])
    assert len(sent) < 500
    assert pickle.loads(sent)[2].tolist() == DOCUMENTS[2]


def test_views_outlive_the_dataset(prefix: Path) -> None:
    row = make_dataset(prefix)[2]
    prefix.with_suffix(".bin").unlink()
    assert row.tolist() == [5, 6, 7, 8]


def test_files_larger_than_memory_are_mapped(tmp_path: Path) -> None:
    """A sparse .bin of four times this machine's memory, which a private writable map cannot take."""
    size = 4 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    count = 4 + size // (2**31 - 4)
    with open(tmp_path / "h.bin", "wb") as file:
        file.truncate(count * (2**31 - 4))
    tokens = (2**31 - 4) // 4
    with open(tmp_path / "h.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, count, count + 1))
        file.write(np.full(count, tokens, "<i4").tobytes())
        file.write((np.arange(count, dtype="<i8") * tokens * 4).tobytes())
        file.write(np.arange(count + 1, dtype="<i8").tobytes())
    data = make_dataset(tmp_path / "h")
    data.verify()
    assert data.num_tokens == count * tokens
    assert data.get(count - 1, tokens - 2).tolist() == [0, 0]


def test_modes_of_multimodal_files_are_passed_over(prefix: Path) -> None:
    with open(f"{prefix}.idx", "ab") as file:
        file.write(b"\x00\x00\x00")
    assert [row.tolist() for row in make_dataset(prefix)] == DOCUMENTS


def cut(path: Path, size: int) -> None:
    with open(path, "r+b") as file:
        file.truncate(size)


def message(prefix: Path, impl: str = "infer") -> str:
    with pytest.raises(DataError) as caught:
        make_dataset(prefix, impl)
    assert len(str(caught.value).splitlines()) <= 10
    return str(caught.value)


def test_damage_is_said_with_both_numbers(prefix: Path) -> None:
    cut(prefix.with_suffix(".bin"), 14)
    text = message(prefix)
    assert f"{prefix}.bin: has 14 bytes" in text
    assert "asks for 16" in text

    size = prefix.with_suffix(".idx").stat().st_size
    cut(prefix.with_suffix(".idx"), size - 8)
    text = message(prefix)
    assert f"has {size - 8} bytes" in text
    assert f"asks for {size}" in text

    cut(prefix.with_suffix(".idx"), 20)
    assert "has 20 bytes, its header alone takes 34" in message(prefix)


def test_what_is_missing_is_said(prefix: Path, tmp_path: Path) -> None:
    assert "prefixes found in" in message(tmp_path / "nothing")
    assert "without .bin or .idx" in message(tmp_path / "d.idx")
    assert f"the folder {tmp_path / 'no'} does not exist" in message(tmp_path / "no" / "d")
    prefix.with_suffix(".bin").unlink()
    assert f"{prefix}.bin: no such file" in message(prefix)


def test_other_files_are_told_by_their_magic(prefix: Path) -> None:
    index = prefix.with_suffix(".idx")
    whole = index.read_bytes()
    index.write_bytes(b"TNTIDX\x00\x00" + whole[8:])
    assert "starts with b'TNTIDX" in message(prefix, "mmap")
    index.write_bytes(b"PK\x03\x04" + whole[4:])
    assert "starts with b'PK" in message(prefix)
    index.write_bytes(whole[:9] + struct.pack("<Q", 7) + whole[17:])
    assert "version 7" in message(prefix)
    index.write_bytes(b"")
    assert "starts with b''" in message(prefix)


def test_verify_finds_damage_inside(prefix: Path) -> None:
    index = prefix.with_suffix(".idx")
    whole = bytearray(index.read_bytes())
    whole[34:38] = struct.pack("<i", 2)  # the first size; the end of the file still fits
    index.write_bytes(whole)
    with pytest.raises(
        DataError, match=r"sequence 1 has size 1 and starts at byte 6, expected byte 4"
    ):
        make_dataset(prefix).verify()
    whole[34:38] = struct.pack("<i", 3)
    whole[-32:-24] = struct.pack("<q", 1)
    index.write_bytes(whole)
    data = MMapIndexedDataset(prefix)
    with pytest.raises(DataError, match="document index does not run from 0 to 3"):
        data.verify()


def test_what_cannot_be_opened_or_written_is_said(prefix: Path, tmp_path: Path) -> None:
    assert "expected infer, mmap or cached" in message(prefix, "lazy")
    with pytest.raises(
        DataError, match="tokens cannot be stored as complex128: expected one of uint8"
    ):
        MMapIndexedDatasetBuilder(tmp_path / "c.bin", np.complex128)
    (tmp_path / "folder.idx").mkdir()
    assert "folder.idx: cannot be read: Is a directory" in message(tmp_path / "folder")
    data = Path(f"{prefix}.bin")
    data.unlink()
    data.mkdir()
    assert f"{data}: cannot be mapped" in message(prefix)
