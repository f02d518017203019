"""The tool from the outside: real command lines, files read back without the project's reader.

The cases carry the numbers that their authors computed by hand.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import string
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import zstandard
from tokenizers import Tokenizer, models, pre_tokenizers

from megatron.errors import DataError, TokenizerError
from megatron.preprocessing.cli import parser, settings_from
from megatron.preprocessing.engine import preprocess
from megatron.preprocessing.readers import read_chunks

pytestmark = pytest.mark.ranks

TOOL = Path(__file__).resolve().parents[2] / "tools" / "datasets" / "preprocess_data.py"
DTYPES = {4: np.dtype("<i4"), 8: np.dtype("<u2")}


class Dump(NamedTuple):
    dtype: str
    documents: list[list[int]]
    doc_idx: list[int]


def dump(prefix: Path) -> Dump:
    """Read a pair of token files from the description of their format alone."""
    raw = Path(f"{prefix}.idx").read_bytes()
    assert raw[:9] == b"MMIDIDX\x00\x00"
    version, code, count, entries = struct.unpack_from("<QBQQ", raw, 9)
    assert version == 1
    assert len(raw) == 34 + 12 * count + 8 * entries
    sizes = np.frombuffer(raw, "<i4", count, 34)
    pointers = np.frombuffer(raw, "<i8", count, 34 + 4 * count)
    doc_idx = np.frombuffer(raw, "<i8", entries, 34 + 12 * count)
    tokens = Path(f"{prefix}.bin").read_bytes()
    dtype = DTYPES[code]
    assert len(tokens) == sizes.sum() * dtype.itemsize
    documents = [
        np.frombuffer(tokens, dtype, size, at).tolist()
        for size, at in zip(sizes, pointers, strict=True)
    ]
    return Dump(dtype.name, documents, doc_idx.tolist())


def save_words(path: Path, vocab: dict[str, int], unknown: str) -> None:
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with ``tok.json``: EOD 0, padding 1, a = 2 … z = 27."""
    monkeypatch.chdir(tmp_path)
    vocab = {"<|endoftext|>": 0, "<|padding|>": 1}
    vocab.update({letter: i + 2 for i, letter in enumerate(string.ascii_lowercase)})
    save_words(tmp_path / "tok.json", vocab, "<|padding|>")
    return tmp_path


def arguments(source: str, name: str, *more: str) -> list[str]:
    return [
        *("--input", source, "--output-prefix", f"out/{name}", "--vocab-file", "tok.json"),
        *("--dataset-impl", "mmap", "--tokenizer-type", "HFTokenizer", "--append-eod", *more),
    ]


def tool(*args: str, ok: bool = True) -> str:
    """Run the tool as a user does; its output if it does what it should, else its complaint."""
    done = subprocess.run(
        [sys.executable, str(TOOL), *args], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode == 0) is ok, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if ok:
        assert done.stderr == ""  # no bar where there is no terminal
        return done.stdout
    assert len(done.stderr.splitlines()) <= 10
    return done.stderr


def run(args: list[str]) -> None:
    """The same in this process, without its set-up of signals and log."""
    preprocess(settings_from(parser().parse_args(args)))


def outputs() -> list[str]:
    return sorted(p.name for p in Path("out").iterdir()) if Path("out").exists() else []


def test_case_1_a_bad_line_is_named(folder: Path) -> None:
    Path("bad.jsonl").write_text('{"text": "a b c"}\n{ \'text\': \'d e f\' }\n{"text": "g h"}\n')
    Path("arr.jsonl").write_text('[\n  {"text": "a b"},\n  {"text": "c"}\n]\n')
    assert "bad.jsonl, line 2:" in tool(*arguments("bad.jsonl", "bad", "--workers", "2"), ok=False)
    message = tool(*arguments("arr.jsonl", "arr"), ok=False)
    assert "arr.jsonl, line 1:" in message
    assert "one object per line" in message
    assert outputs() == []


FOUR_LINES = [b'{"text": "a b"}\n', b'{"text": "c"}\n', b'{"text": "d e f"}\n', b'{"text": "g"}\n']


def test_case_2_two_frames_and_a_cut_one(folder: Path) -> None:
    compress = zstandard.ZstdCompressor().compress
    frames = compress(b"".join(FOUR_LINES[:2])) + compress(b"".join(FOUR_LINES[2:]))
    Path("two.jsonl.zst").write_bytes(frames)
    Path("cut.jsonl.zst").write_bytes(frames[:-8])
    Path("plain.jsonl").write_bytes(b"".join(FOUR_LINES))
    run(arguments("two.jsonl.zst", "two", "--workers", "2"))
    run(arguments("plain.jsonl", "plain"))
    assert dump(Path("out/two_text_document")) == Dump(
        "uint16", [[2, 3, 0], [4, 0], [5, 6, 7, 0], [8, 0]], [0, 1, 2, 3, 4]
    )
    for ending in (".bin", ".idx"):
        two, plain = (Path(f"out/{name}_text_document{ending}") for name in ("two", "plain"))
        assert two.read_bytes() == plain.read_bytes()
    assert "cut.jsonl.zst: incomplete" in tool(*arguments("cut.jsonl.zst", "cut"), ok=False)
    assert not [name for name in outputs() if name.startswith("cut")]


def test_case_3_endings_and_nothing_to_write(folder: Path) -> None:
    Path("good.json").write_text('{"text": "a"}\n')
    run(arguments("good.json", "good"))
    assert dump(Path("out/good_text_document")).documents == [[2, 0]]
    Path("none.jsonl").touch()
    Path("blank.jsonl").write_text('{"text": ""}\n{"text": "   "}\n')
    for name in ("none", "blank"):
        assert "0 documents" in tool(*arguments(f"{name}.jsonl", name), ok=False)
    assert outputs() == ["good_text_document.bin", "good_text_document.idx"]


def test_case_4_empty_documents_are_skipped_and_counted(folder: Path) -> None:
    Path("gaps.jsonl").write_text('{"text": ""}\n{"text": "a b"}\n{"text": ""}\n{"text": "c"}\n')
    said = tool(*arguments("gaps.jsonl", "gaps"))
    assert "2 documents, 5 tokens" in said
    assert "2 empty documents skipped" in said
    assert dump(Path("out/gaps_text_document")) == Dump("uint16", [[2, 3, 0], [4, 0]], [0, 1, 2])


def test_case_5_the_number_of_workers_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small chunks, so that every worker gets many of them.
    monkeypatch.setattr("megatron.preprocessing.formats._BLOCK_BYTES", 1000)
    small = functools.partial(read_chunks, chunk_bytes=1000)
    monkeypatch.setattr("megatron.preprocessing.engine.read_chunks", small)
    texts = [" ".join(chr(97 + (i * j) % 26) for j in range(1, i % 7 + 2)) for i in range(2000)]
    Path("many.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    for workers in ("1", "2", "4"):
        run(arguments("many.jsonl", workers, "--workers", workers))
    for ending in (".bin", ".idx"):
        files = {Path(f"out/{w}_text_document{ending}").read_bytes() for w in ("1", "2", "4")}
        assert len(files) == 1
    written = dump(Path("out/4_text_document"))
    assert written.documents == [[*(ord(c) - 95 for c in t.split()), 0] for t in texts]
    assert written.doc_idx == list(range(2001))


def test_workers_drop_an_engine_that_is_disproved(folder: Path) -> None:
    # tiktoken's engine would join "a" and "bc" to "abc"; by these merges b and c join first.
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "bc", "ab", "abc", "<|endoftext|>"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    slow = Tokenizer(models.BPE(vocab=vocab, merges=[("b", "c"), ("a", "b"), ("ab", "c")]))
    slow.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    slow.save("tok.json")
    Path("abc.jsonl").write_text('{"text": "abc"}\n')
    said = tool(*arguments("abc.jsonl", "abc", "--workers", "2"))
    assert "encoded by the tokenizers library (the piece 'abc' does not come from" in said
    expected = [*slow.encode("abc").ids, vocab["<|endoftext|>"]]
    assert dump(Path("out/abc_text_document")).documents == [expected]
    assert expected == [vocab["a"], vocab["bc"], vocab["<|endoftext|>"]]


def test_case_6_ids_above_65535(folder: Path) -> None:
    vocab = {f"w{i}": i for i in range(69998)} | {"<|endoftext|>": 69998, "w69999": 69999}
    save_words(Path("tok70k.json"), vocab, "<|endoftext|>")
    Path("big.jsonl").write_text('{"text": "w1 w65535 w65536 w69997"}')
    run(arguments("big.jsonl", "big", "--vocab-file", "tok70k.json"))
    assert dump(Path("out/big_text_document")) == Dump(
        "int32", [[1, 65535, 65536, 69997, 69998]], [0, 1]
    )


def test_several_keys_and_several_files(folder: Path) -> None:
    Path("one.jsonl").write_text('{"a": "x", "b": "y z"}\n')
    Path("two.jsonl").write_text('{"b": "q", "a": ""}\n')
    rest = arguments("", "n/k", "--jsonl-keys", "a", "b", "--num-docs", "1")[2:]
    run(["--input", "one.jsonl,two.jsonl", "one.jsonl", *rest])
    assert dump(Path("out/n/k_a_document")).documents == [[25, 0], [25, 0]]
    assert dump(Path("out/n/k_b_document")).documents == [[26, 27, 0], [18, 0], [26, 27, 0]]


def test_without_append_eod(folder: Path) -> None:
    Path("a.jsonl").write_text('{"text": "a b"}\n{"text": ""}\n{"text": "c"}\n')
    run([a for a in arguments("a.jsonl", "a") if a != "--append-eod"])
    assert dump(Path("out/a_text_document")).documents == [[2, 3], [4]]


def test_append_eod_without_an_eod_stops_before_any_work(folder: Path) -> None:
    save_words(Path("tok.json"), {"a": 0, "b": 1}, "a")
    Path("a.jsonl").write_text("this is never read\n")
    with pytest.raises(TokenizerError, match="no end-of-document token"):
        run(arguments("a.jsonl", "a"))
    assert outputs() == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--dataset-impl", "lazy"], "--dataset-impl lazy: it opens and seeks"),
        (["--workers", "0"], "--workers is 0"),
        (["--log-interval", "0"], "--log-interval is 0"),
        (["--jsonl-keys", "text", "text"], "each named once"),
        (["--jsonl-keys", "../text"], "cannot hold '/'"),
        (["--jsonl-keys", "text", "label"], "line 1: no key 'label'"),
    ],
)
def test_what_cannot_be_done_is_refused(folder: Path, more: list[str], message: str) -> None:
    Path("a.jsonl").write_text('{"text": "a b"}\n')
    with pytest.raises(DataError, match=message):
        run(arguments("a.jsonl", "a", *more))
    assert outputs() == []


def test_lone_surrogates_are_replaced_and_counted(folder: Path) -> None:
    Path("a.jsonl").write_text(r'{"text": "a \ud800"}' + "\n")
    assert "1 texts held lone surrogates, replaced by U+FFFD" in tool(*arguments("a.jsonl", "a"))


def test_a_full_disk_ends_in_an_error_without_files(folder: Path) -> None:
    Path("a.jsonl").write_text('{"text": "a b c d e f g h"}\n' * 2000)
    command = [sys.executable, str(TOOL), *arguments("a.jsonl", "a")]
    # A limit on the size of files fails as a full disk does: when they are flushed.
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 4; exec "$@"', "-", *command],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "out/a.partial: cannot be written: File too large" in done.stderr
    assert outputs() == []


def start_a_long_run() -> subprocess.Popen[str]:
    """A run that takes a while and is at work, its workers too, when this returns."""
    Path("a.jsonl").write_text((json.dumps({"text": "a b c d e f g h " * 60}) + "\n") * 1000)
    process = subprocess.Popen(
        [sys.executable, str(TOOL), *arguments(",".join(["a.jsonl"] * 60), "a", "--workers", "2")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 20
    while len(children(process.pid)) < 2 or not outputs():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    assert outputs() == ["a.partial"]
    return process


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_stopped_takes_its_files_away(
    folder: Path, number: signal.Signals, status: int
) -> None:
    process = start_a_long_run()
    process.send_signal(number)
    _, complaint = process.communicate(timeout=20)
    assert process.returncode == status
    assert "Traceback" not in complaint
    # On a machine so busy that seconds went by, there is work to go on from, and that is said.
    is_work_left = "the same command goes on from there" in complaint
    assert outputs() == (["a.partial"] if is_work_left else [])


def test_a_killed_worker_ends_the_run(folder: Path) -> None:
    process = start_a_long_run()
    os.kill(children(process.pid)[0], signal.SIGKILL)
    _, complaint = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "was killed by SIGKILL" in complaint
    assert outputs() == []


def test_workers_end_with_a_killed_parent(folder: Path) -> None:
    process = start_a_long_run()
    workers = children(process.pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not any(name.endswith((".bin", ".idx")) for name in outputs())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
