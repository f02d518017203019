"""Files → chunks of whole lines: plain and zstandard, wherever blocks and chunks are cut."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron.errors import DataError
from megatron.preprocessing import formats, readers
from megatron.preprocessing.readers import check_inputs, read_chunks
from megatron.preprocessing.zstd_frames import decompress_frames, is_zstd

FRAME = zstandard.ZstdCompressor(write_checksum=True)
SKIPPABLE = struct.pack("<II", 0x184D2A53, 5) + b"hello"


def read(*paths: Path, chunk_bytes: int = 1 << 19) -> list[tuple[str, int, bytes]]:
    chunks = read_chunks([str(p) for p in paths], chunk_bytes)
    return [(Path(c.path).name, c.first_line, c.text) for c in chunks]


@given(
    st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), max_size=12),
    st.booleans(),
    st.integers(1, 30),
    st.integers(1, 9),
)
@settings(max_examples=150, deadline=None)
def test_chunks_are_the_lines_and_their_numbers(
    lines: list[bytes], ends: bool, chunk_bytes: int, block_bytes: int
) -> None:
    text = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    blocks = (text[i : i + block_bytes] for i in range(0, len(text), block_bytes))
    cut = list(readers._cut_at_line_ends(blocks, chunk_bytes))
    assert b"".join(cut) == text
    assert all(chunk.endswith(b"\n") for chunk in cut[:-1])
    # A chunk ends in the first block with a line end after it is full.
    bound = chunk_bytes + 2 * block_bytes + max(map(len, lines), default=0)
    assert all(len(chunk) <= bound for chunk in cut)


@pytest.mark.parametrize("chunk_bytes", [1, 5, 1 << 19])
@pytest.mark.parametrize("compressed", [False, True])
def test_line_numbers_start_again_in_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, compressed: bool
) -> None:
    monkeypatch.setattr(formats, "_BLOCK_BYTES", 3)
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    for path, text in ((one, b"a\nbb\n\nccc"), (two, b"d\n")):
        path.write_bytes(FRAME.compress(text) if compressed else text)
    chunks = read(one, two, chunk_bytes=chunk_bytes)
    for name, text in (("one.jsonl", b"a\nbb\n\nccc"), ("two.jsonl", b"d\n")):
        mine = [(line, part) for file, line, part in chunks if file == name]
        assert b"".join(part for _, part in mine) == text
        for line, part in mine:
            at = text.index(part)
            assert line == 1 + text[:at].count(b"\n")


def test_stored_bytes_add_up_to_the_files(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.zst"
    plain.write_bytes(b"x" * 700_000 + b"\n" + b"y\n" * 400_000)
    packed.write_bytes(FRAME.compress(plain.read_bytes()))
    paths = [str(plain), str(packed)]
    stored = sum(chunk.stored_bytes for chunk in read_chunks(paths))
    assert stored == check_inputs(paths) == plain.stat().st_size + packed.stat().st_size


def test_byte_order_mark_and_foreign_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + 'a\u2028b\r\nc\x85\x0b"\ufeff"'.encode())
    assert read(path) == [("a.jsonl", 1, 'a\u2028b\r\nc\x85\x0b"\ufeff"'.encode())]
    path.write_bytes(b"\xef\xbb")  # cut in the middle of the mark
    assert read(path) == [("a.jsonl", 1, b"\xef\xbb")]
    path.write_bytes(b"")
    assert read(path) == []


def test_the_content_decides_whether_a_file_is_compressed(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.jsonl.zst", tmp_path / "b.jsonl"
    plain.write_bytes(b"a\n")
    packed.write_bytes(FRAME.compress(b"b\n"))
    assert [text for _, _, text in read(plain, packed)] == [b"a\n", b"b\n"]


def test_inputs_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "a.csv").touch()
    for name, message in (
        ("none.jsonl", r"none\.jsonl: cannot be read: No such file"),
        ("folder.jsonl", "is a folder; name the files in it"),
        ("a.csv", r"accepted endings are \.jsonl, \.json, \.txt, \.jsonl\.zst"),
    ):
        with pytest.raises(DataError, match=message):
            check_inputs([str(tmp_path / name)])
    (tmp_path / "B.JSONL").write_bytes(b"abc")
    assert check_inputs([str(tmp_path / "B.JSONL")]) == 3


def decompress(data: bytes) -> bytes:
    return b"".join(decompress_frames(io.BytesIO(data), "f.zst"))


def test_frames_follow_each_other() -> None:
    data = FRAME.compress(b"one\n") + SKIPPABLE + FRAME.compress(b"") + FRAME.compress(b"two\n")
    assert decompress(data) == b"one\ntwo\n"
    long = b"".join(b"%d\n" % i for i in range(100_000))
    assert decompress(FRAME.compress(long) + FRAME.compress(long)) == long + long


def test_every_cut_but_between_frames_is_an_error() -> None:
    frames = [FRAME.compress(b"first frame\n" * 3), FRAME.compress(b"second\n")]
    data = b"".join(frames)
    for cut in range(1, len(data)):
        if cut == len(frames[0]):
            assert decompress(data[:cut]) == b"first frame\n" * 3
            continue
        number = 1 if cut < len(frames[0]) else 2
        with pytest.raises(
            DataError, match=rf"incomplete: .* after {cut} bytes .* frame {number}\b"
        ):
            decompress(data[:cut])


def test_damage_is_an_error() -> None:
    data = bytearray(FRAME.compress(b"some text\n" * 100))
    data[-1] ^= 1
    with pytest.raises(DataError, match=r"f\.zst: frame 1 is damaged.*checksum"):
        decompress(bytes(data))
    with pytest.raises(DataError, match="frame 2 is damaged"):
        decompress(FRAME.compress(b"text") + b"\0\0\0\0 trailing")


def test_magic() -> None:
    assert is_zstd(FRAME.compress(b"a")[:4])
    assert is_zstd(SKIPPABLE[:4])
    assert not is_zstd(b'{"te')
    assert not is_zstd(b"(\xb5")
