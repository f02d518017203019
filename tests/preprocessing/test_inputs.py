"""What --input names, and what a file turns out to be."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard

from megatron.data.indexed_dataset import make_dataset
from megatron.errors import DataError
from megatron.preprocessing.documents import Tolerance, parse_documents
from megatron.preprocessing.engine import PreprocessSettings, preprocess
from megatron.preprocessing.gzip_members import decompress_members
from megatron.preprocessing.inputs import input_files
from megatron.preprocessing.readers import TextChunk, check_inputs, read_chunks

TOOL = Path(__file__).resolve().parents[2] / "tools" / "datasets" / "preprocess_data.py"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (
        "d/b.jsonl",
        "d/a.jsonl.gz",
        "d/Z.txt",
        "d/sub/c.json",
        "d/notes.md",
        "d/.h.jsonl",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "e,f.jsonl").touch()
    return tmp_path


def test_folders_patterns_and_lists_in_a_stable_order(files: Path) -> None:
    in_folder = ("d/Z.txt", "d/a.jsonl.gz", "d/b.jsonl", "d/sub/c.json")
    assert input_files(["d"]) == in_folder
    assert input_files(["d/*.json*"]) == ("d/a.jsonl.gz", "d/b.jsonl")
    assert input_files(["d/**/*.json"]) == ("d/sub/c.json",)
    # Named order wins over the sorted one; a name that exists is no list.
    assert input_files(["d/b.jsonl,d/Z.txt", "e,f.jsonl"]) == ("d/b.jsonl", "d/Z.txt", "e,f.jsonl")
    assert input_files(["-", "none.jsonl"]) == ("-", "none.jsonl")


@pytest.mark.parametrize("name", ["d/x*", "empty"])
def test_nothing_found_is_an_error(files: Path, name: str) -> None:
    (files / "empty").mkdir()
    with pytest.raises(DataError, match=rf"--input {name.replace('*', '.')}: holds no file"):
        input_files([name])


def test_a_file_named_twice_is_said(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert input_files(["d/b.jsonl", "d/b.jsonl"]) == ("d/b.jsonl",) * 2
    assert "names d/b.jsonl more than once" in caplog.text


def texts_of(path: Path) -> list[str]:
    return [d[0] for chunk in read_chunks([str(path)]) for d in parse_documents(chunk, ["text"])]


def test_gzip_and_text_files(tmp_path: Path) -> None:
    rows = [b'{"text": "one\\u2028"}\r\n', b'\n{"text": "two"}']
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(rows[0]) + gzip.compress(rows[1]) + b"\0" * 9)
    assert texts_of(packed) == ["one\u2028", "two"]
    text = '\ufeffHe said: "é"\r\n\n\u2028end\n'
    for name, write in (
        ("a.txt", bytes),
        ("a.txt.gz", gzip.compress),
        ("A.TXT.zst", zstandard.ZstdCompressor().compress),
    ):
        (tmp_path / name).write_bytes(write(text.encode()))
        assert texts_of(tmp_path / name) == [text[1:]], name
    (tmp_path / "empty.txt").touch()
    assert texts_of(tmp_path / "empty.txt") == []
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"latin\.txt: not UTF-8 at byte 4"):
        texts_of(tmp_path / "latin.txt")


def test_an_ending_that_lies_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(b'{"text": "a"}')
    assert texts_of(tmp_path / "a.jsonl.zst") == ["a"]
    check_inputs([str(tmp_path / "a.jsonl.zst")])
    assert "a.jsonl.zst: is a plain file whatever its name" in caplog.text
    (tmp_path / "b.jsonl").write_bytes(gzip.compress(b'{"text": "b"}'))
    assert texts_of(tmp_path / "b.jsonl") == ["b"]
    check_inputs([str(tmp_path / "b.jsonl")])
    assert "b.jsonl: is a .gz file whatever its name" in caplog.text


def test_every_cut_gzip_file_is_an_error() -> None:
    members = [gzip.compress(b"first\n" * 9), gzip.compress(b"second\n")]
    data = b"".join(members)
    for cut in range(1, len(data)):
        if cut != len(members[0]):
            with pytest.raises(DataError, match=r"f\.gz: incomplete: .*member [12]"):
                list(decompress_members(io.BytesIO(data[:cut]), "f.gz"))
    damaged = bytearray(members[0])
    damaged[-6] ^= 1
    with pytest.raises(DataError, match=r"f\.gz: member 1 is damaged"):
        list(decompress_members(io.BytesIO(damaged), "f.gz"))


def test_lines_are_skipped_only_where_that_was_asked_for() -> None:
    lines = b'{"text": "a"}\n{"text": 3}\nnot json\n{"b": ""}\n\n{"text": "c"}'
    chunk = TextChunk("f", 1, lines, 0)
    tolerance = Tolerance(skip_bad_lines=True, skip_missing_keys=True)
    assert list(parse_documents(chunk, ["text"], tolerance)) == [["a"], ["c"]]
    assert (tolerance.bad_lines, tolerance.missing_keys) == (2, 1)
    with pytest.raises(DataError, match="f, line 2: the value of 'text'"):
        list(parse_documents(chunk, ["text"], Tolerance(skip_missing_keys=True)))
    with pytest.raises(DataError, match="f, line 4: no key 'text'"):
        list(parse_documents(chunk, ["text"], Tolerance(skip_bad_lines=True)))


def test_skips_are_counted_and_dtypes_are_obeyed(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "ab"}\n{\n[]\n{"x": 1}\n{"text": "c"}\n')
    for dtype in ("uint16", "int32", "int64"):
        prefix = str(tmp_path / dtype)
        settings = PreprocessSettings(
            (str(source),), prefix, "CharLevelTokenizer", on_bad_line="skip", on_missing_key="skip",
            dtype=dtype,
        )  # fmt: skip
        report = preprocess(settings)
        assert (report.tally.bad_lines, report.tally.missing_keys) == (2, 1)
        dataset = make_dataset(f"{prefix}_text_document")
        assert (dataset.dtype, len(dataset)) == (np.dtype(dtype), 2)
        assert [dataset[i].tolist() for i in range(2)] == [[97, 98], [99]]


def test_ftfy_without_the_package_stops_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "ab"}')
    monkeypatch.setitem(sys.modules, "ftfy", None)
    settings = PreprocessSettings(
        (str(tmp_path / "a.jsonl"),), str(tmp_path / "o"), "CharLevelTokenizer", ftfy=True
    )
    with pytest.raises(DataError, match="pip install ftfy"):
        preprocess(settings)


@pytest.mark.ranks
@pytest.mark.parametrize("packed", [False, True])
def test_standard_input_and_the_command_line(tmp_path: Path, packed: bool) -> None:
    rows = "".join(json.dumps({"text": f"{i} é"}, ensure_ascii=False) + "\n" for i in range(9))
    data = gzip.compress(rows.encode()) if packed else rows.encode()
    options = ["--output-prefix", str(tmp_path / "o"), "--tokenizer-type", "CharLevelTokenizer"]
    command = [sys.executable, str(TOOL), "--input", "-", *options, "--dtype", "int32"]
    run = subprocess.run(command, input=data + b"", capture_output=True)
    assert run.returncode == 0, run.stderr
    dataset = make_dataset(str(tmp_path / "o_text_document"))
    assert bytes(dataset[8].tolist()).decode() == "8 é"
    assert len(dataset) == 9
