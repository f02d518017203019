"""What a file turns out to be, and reading a part of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megatron.errors import DataError
from megatron.preprocessing.documents import parse_documents
from megatron.preprocessing.formats import Format, split_at
from megatron.preprocessing.readers import check_inputs, cut, read_chunks

TEXTS = ["one", "", "é\u2028\r\n", "x" * 3000, "--", "last"]


def texts_of(path: Path, how: Format = Format()) -> list[str]:  # noqa: B008 - frozen
    chunks = read_chunks([str(path)], how=how)
    return [d[0] for chunk in chunks for d in parse_documents(chunk, how.columns)]


@given(
    st.lists(st.sampled_from([b"", b"ab", b"a", b"b", b"aab", b"x" * 9])),
    st.sampled_from([b"a", b"ab", b"aab", b"abab"]),
    st.integers(1, 5),
)
def test_pieces_are_those_of_the_whole(pieces: list[bytes], separator: bytes, size: int) -> None:
    whole = b"".join(pieces)
    blocks = (whole[i : i + size] for i in range(0, len(whole), size))
    assert list(split_at(blocks, separator)) == whole.split(separator)


def test_a_text_file_split_at_a_separator(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\ufeffone\n\n\n\n\n\ntwo\n\n\n\n\u2028three\n", encoding="utf-8")
    how = Format(separator="\n\n\n")
    assert texts_of(path, how) == ["one", "two", "\n\u2028three\n"]
    assert len(texts_of(path)) == 1
    path.write_bytes(b"ok--\xff")
    with pytest.raises(DataError, match=r"a\.txt: not UTF-8 at byte 1 of document 2"):
        texts_of(path, Format(separator="--"))


def test_parquet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    rows = TEXTS * 100
    table = pa.table({"n": list(range(len(rows))), "text": rows, "odd": [b"\xff"] * len(rows)})
    pq.write_table(table, path, row_group_size=77)
    assert check_inputs([str(path)]) == path.stat().st_size
    assert texts_of(path) == rows
    chunks = list(read_chunks([str(path)], 5000))
    assert len(chunks) == 3
    stored = [chunk.stored_bytes for chunk in chunks]
    assert sum(stored) == path.stat().st_size
    # From any chunk on, as a resumed run does.
    rest = read_chunks([str(path)], 5000, start=chunks[1].end)
    assert b"".join(c.text for c in rest) == b"".join(c.text for c in chunks[2:])
    assert next(read_chunks([str(path)], 5000, start=chunks[1].end)).first_line == 513
    # The content decides, and that is said.
    lying = tmp_path / "b.jsonl"
    lying.write_bytes(path.read_bytes())
    check_inputs([str(lying)])
    assert "b.jsonl: is a .parquet file whatever its name" in caplog.text
    assert texts_of(lying) == rows
    with pytest.raises(DataError, match=r"a\.parquet, row 1: no key 'missing'"):
        texts_of(path, Format(columns=("missing",)))
    with pytest.raises(DataError, match=r"a\.parquet, row 1: the value of 'n' is not a string"):
        texts_of(path, Format(columns=("n",)))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read as a Parquet file"):
        texts_of(path)


def test_plain_lines_named_parquet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.parquet"
    path.write_text('{"text": "a"}\n')
    check_inputs([str(path)])
    assert "a.parquet: is a plain file whatever its name" in caplog.text
    assert texts_of(path) == ["a"]


def test_parquet_without_pyarrow_is_said_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1....")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"needs the package pyarrow: `pip install pyarrow`"):
        check_inputs([str(tmp_path / "a.parquet")])


@given(
    st.lists(st.sampled_from(["", "x", "yy", "é\u2028", "z" * 40]), min_size=1),
    st.booleans(),
    st.booleans(),
    st.integers(1, 9),
)
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_parts_are_the_lines_and_their_numbers(
    tmp_path: Path, lines: list[str], mark: bool, ends: bool, parts: int
) -> None:
    text = "\n".join(f'{{"text": "{line}"}}' for line in lines) + "\n" * ends
    one, two = tmp_path / "one.jsonl", tmp_path / "two.txt"
    one.write_text("\ufeff" * mark + text, encoding="utf-8")
    two.write_text("prose")
    spans = cut([str(one), str(two), str(one)], parts)
    assert len(spans) == parts
    chunks = [chunk for part in spans for chunk in read_chunks(part, chunk_bytes=1)]
    found = [t for chunk in chunks for (t,) in parse_documents(chunk, ["text"])]
    assert found == [*lines, "prose", *lines]
    for chunk in chunks:
        if chunk.path == str(one):
            number = int(chunk.place(chunk.first_line).rpartition(" ")[2])
            assert json.loads(chunk.text.split(b"\n")[0]) == {"text": lines[number - 1]}


@given(st.integers(1, 300), st.booleans())
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_reading_goes_on_from_any_chunk(tmp_path: Path, size: int, mark: bool) -> None:
    path = tmp_path / "a.jsonl"
    body = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    path.write_text("\ufeff" * mark + body, encoding="utf-8")
    chunks = list(read_chunks([str(path), str(path)], size))
    for number, chunk in enumerate(chunks):
        rest = list(read_chunks([str(path), str(path)], size, start=chunk.end))
        assert b"".join(c.text for c in rest) == b"".join(c.text for c in chunks[number + 1 :])
        assert [c.first_line for c in rest][:1] == [c.first_line for c in chunks[number + 1 :]][:1]


@pytest.mark.ranks
def test_a_named_pipe_is_read_once(tmp_path: Path) -> None:
    pipe, prefix = tmp_path / "p.jsonl", tmp_path / "out"
    tool = Path(__file__).resolve().parents[2] / "tools" / "datasets" / "preprocess_data.py"
    options = f"--output-prefix {prefix} --tokenizer-type CharLevelTokenizer"
    script = (
        f'mkfifo {pipe}; {{ printf \'{{"text": "ab"}}\\n\' > {pipe}; }} & '
        f"{sys.executable} {tool} --input {pipe} {options}"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert "1 documents, 2 tokens" in done.stdout, done.stderr
