"""An interrupted run is taken up where it stopped, and nothing of it shows in the files."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard

from megatron.errors import DataError
from megatron.preprocessing import engine, part, unfinished
from megatron.preprocessing.encoding import EncodedChunk, EncoderRecipe
from megatron.preprocessing.engine import PreprocessSettings, Report, preprocess
from megatron.preprocessing.readers import TextChunk, read_chunks

ROOT = Path(__file__).resolve().parents[2]


class InThisProcess:
    """A pool without processes."""

    def __init__(self, recipe: EncoderRecipe, workers: int) -> None:
        self._encode = recipe.build()

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def encode(self, chunks: Iterable[TextChunk]) -> Iterator[EncodedChunk]:
        return map(self._encode, chunks)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus in all forms; chunks are small and every one is kept at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine, "WorkerPool", InThisProcess)
    monkeypatch.setattr(part, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr("megatron.preprocessing.formats._BLOCK_BYTES", 200)
    small = functools.partial(read_chunks, chunk_bytes=300)
    monkeypatch.setattr(engine, "read_chunks", small)
    rng = random.Random(1)
    texts = ["é x" * rng.randrange(30) for _ in range(80)]
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    Path("a.jsonl").write_text("\ufeff" + lines)
    Path("b.jsonl").write_text(lines[:-1])
    packed = zstandard.ZstdCompressor().compress(lines.encode())
    Path("c.jsonl.zst").write_bytes(packed + packed)
    Path("d.txt").write_text("--".join(texts))
    return tmp_path


FORMS = ("a.jsonl", "b.jsonl", "c.jsonl.zst", "d.txt")


def settings(name: str, inputs: tuple[str, ...] = FORMS, **more: object) -> PreprocessSettings:
    given = {"append_eod": True, "txt_separator": "--"} | more
    return PreprocessSettings(inputs, f"out/{name}", "CharLevelTokenizer", **given)  # type: ignore[arg-type]


def outputs() -> list[str]:
    return sorted(path.name for path in Path("out").iterdir()) if Path("out").exists() else []


def content(name: str) -> tuple[bytes, bytes]:
    prefix = f"out/{name}_text_document"
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


class Interrupts:
    """Stops a run, as Ctrl-C does, when it is about to add its ``after``-th chunk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.after = self.added = 0
        real = part.Part.add

        def add(this: part.Part, chunk: EncodedChunk) -> None:
            if self.after and self.added == self.after:
                raise KeyboardInterrupt
            self.added += 1
            real(this, chunk)

        monkeypatch.setattr(part.Part, "add", add)

    def run(self, after: int, what: PreprocessSettings) -> int:
        """Chunks that were added until the interruption."""
        self.after, self.added = after, 0
        with pytest.raises(KeyboardInterrupt):
            preprocess(what)
        self.after = 0
        return self.added

    def rest(self, what: PreprocessSettings) -> int:
        """Chunks that a whole run adds."""
        self.added = 0
        preprocess(what)
        return self.added


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> Interrupts:
    return Interrupts(monkeypatch)


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_files_are_the_same_wherever_a_run_stopped(
    interrupts: Interrupts, partitions: int
) -> None:
    whole = interrupts.rest(settings("whole"))
    assert whole > 30
    total = interrupts.rest(settings("p", partitions=partitions))
    for after in range(1, total, 7):
        name = f"n{after}"
        assert interrupts.run(after, settings(name, partitions=partitions)) == after
        assert f"{name}.partial" in outputs()
        rest = interrupts.rest(settings(name, partitions=partitions))
        assert rest <= total - after + 1  # the same work is not done twice
        assert content(name) == content("whole")
        assert f"{name}.partial" not in outputs()
    assert content("p") == content("whole")


def test_the_counts_are_those_of_both_runs(interrupts: Interrupts) -> None:
    def counts(report: Report) -> tuple[object, ...]:
        file = report.files[0]
        return file.documents, file.tokens, file.empty, report.tally.text_bytes

    whole = preprocess(settings("whole"))
    interrupts.run(20, settings("a"))
    resumed = preprocess(settings("a"))
    assert counts(resumed) == counts(whole)
    assert 0 < resumed.resumed < resumed.tally.text_bytes


def damaged(path: str, at: float) -> None:
    data = bytearray(Path(path).read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    Path(path).write_bytes(data)


@pytest.mark.parametrize("what", ["bin", "sizes", "journal"])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone", "tail"])
def test_what_is_torn_is_seen(
    interrupts: Interrupts, what: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    preprocess(settings("whole"))
    interrupts.run(30, settings("a"))
    name = "part-0-of-1.journal" if what == "journal" else f"part-0-of-1.text.{what}"
    path = Path("out/a.partial") / name
    if how == "flipped":
        damaged(str(path), 0.5)
    elif how == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "gone":
        path.unlink()
    else:
        with open(path, "ab") as file:
            file.write(b"torn tail")
    interrupts.rest(settings("a"))
    assert content("a") == content("whole")
    assert ("torn or damaged" in caplog.text) is (what != "journal" and how != "tail")


@pytest.mark.parametrize("ending", [".bin", ".sizes"])
def test_a_stop_within_a_chunk_lets_nothing_of_it_count(
    monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    preprocess(settings("whole"))
    real, written = part._GrowingFile.write, 0

    def write(this: part._GrowingFile, values: np.ndarray) -> None:
        nonlocal written
        written += this.path.suffix == ending
        if written == 9:
            raise KeyboardInterrupt
        real(this, values)

    monkeypatch.setattr(part._GrowingFile, "write", write)
    with pytest.raises(KeyboardInterrupt):
        preprocess(settings("a"))
    monkeypatch.setattr(part._GrowingFile, "write", real)
    preprocess(settings("a"))
    assert content("a") == content("whole")


@pytest.mark.parametrize(
    ("more", "flag"),
    [
        ({"append_eod": False}, "--append-eod"),
        ({"dtype": "int32"}, "--dtype"),
        ({"txt_separator": "x"}, "--txt-separator"),
        ({"inputs": FORMS[:3]}, "--input"),
        ({"dataset_impl": "cached"}, "--dataset-impl, --dtype"),
        ({"tokenizer_type": "HFTokenizer"}, "tokenizer"),
    ],
)
def test_other_settings_start_afresh(
    interrupts: Interrupts, more: dict[str, str], flag: str, caplog: pytest.LogCaptureFixture
) -> None:
    if "tokenizer_type" in more:
        more = {**more, "vocab_file": str(ROOT / "tools" / "quickstart" / "tokenizer.json")}
    interrupts.run(20, settings("a"))

    def other(name: str) -> PreprocessSettings:
        return PreprocessSettings(**{**vars(settings(name)), **more})

    preprocess(other("a"))
    assert f"made with other {flag}: starting afresh" in caplog.text
    preprocess(other("whole"))
    assert content("a") == content("whole")


def test_a_changed_input_starts_afresh(
    interrupts: Interrupts, caplog: pytest.LogCaptureFixture
) -> None:
    interrupts.run(20, settings("a"))
    status = Path("a.jsonl").stat()
    os.utime("a.jsonl", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    preprocess(settings("a"))
    assert "made with other --input: starting afresh" in caplog.text


def test_afresh_throws_the_work_away(interrupts: Interrupts) -> None:
    whole = interrupts.rest(settings("a"))
    interrupts.run(20, settings("a"))
    assert interrupts.rest(settings("a", afresh=True)) == whole


def test_a_bad_line_at_the_end_costs_no_work(interrupts: Interrupts) -> None:
    with open("b.jsonl", "a") as file:
        file.write("\nno json\n")
    with pytest.raises(DataError, match=r"b\.jsonl, line 81: not valid JSON"):
        preprocess(settings("a"))
    rest = interrupts.rest(settings("a", on_bad_line="skip"))
    whole = interrupts.rest(settings("whole", on_bad_line="skip"))
    assert rest < whole
    assert content("a") == content("whole")
    # What was left out must not be left out where that is not wanted.
    interrupts.run(whole - 1, settings("a", on_bad_line="skip"))
    with pytest.raises(DataError, match=r"b\.jsonl, line 81: not valid JSON"):
        preprocess(settings("a"))


def test_parts_of_several_machines_are_joined(interrupts: Interrupts) -> None:
    whole = interrupts.rest(settings("whole"))
    for number in (2, 0):
        report = preprocess(settings("a", partitions=4, partition=number))
        assert report.files[0].documents > 0
    assert outputs() == ["a.partial", "whole_text_document.bin", "whole_text_document.idx"]
    with pytest.raises(DataError, match="holds work of a run with --partitions 4"):
        preprocess(settings("a"))
    rest = interrupts.rest(settings("a", partitions=4))
    assert 0 < rest < whole * 3 // 4
    assert content("a") == content("whole")


def test_a_line_of_a_part_has_its_number_in_the_file(interrupts: Interrupts) -> None:
    lines = Path("a.jsonl").read_text().splitlines()
    lines[69] = "no json"
    Path("a.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"a\.jsonl, line 70: not valid JSON"):
        preprocess(settings("a", inputs=("a.jsonl",), partitions=4))


def test_two_runs_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [unfinished.OutputFile("text", "out/a_text_document", engine.LABEL_DTYPE)]
    with unfinished.Unfinished("out/a", files, "mmap", 1):
        with pytest.raises(DataError, match="another run is at work on this output"):
            preprocess(settings("a"))
        with pytest.raises(DataError, match="another run is at work on this output"):
            preprocess(settings("a", partitions=2, partition=1))
    assert outputs() == []


def stop_at_rename(monkeypatch: pytest.MonkeyPatch, stop_at: int) -> Callable[[str, str], None]:
    """Stops a run, as Ctrl-C does, before the rename ``stop_at`` of its files; the real function."""
    real, done = os.replace, []

    def replace(source: str, target: str) -> None:
        if "publish" not in str(target):
            if len(done) == stop_at:
                raise KeyboardInterrupt
            done.append(target)
        real(source, target)

    monkeypatch.setattr(unfinished.os, "replace", replace)
    return real


@pytest.mark.parametrize("stop_at", range(4))
def test_publishing_is_finished_by_the_next_run(
    monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    Path("two.jsonl").write_text('{"a": "one", "b": "two"}\n' * 9)
    both = {"inputs": ("two.jsonl",), "jsonl_keys": ("a", "b")}
    preprocess(settings("whole", **both))
    preprocess(settings("x", **both, dtype="int32"))
    real = stop_at_rename(monkeypatch, stop_at)
    with pytest.raises(KeyboardInterrupt):
        preprocess(settings("x", **both))
    monkeypatch.setattr(unfinished.os, "replace", real)
    preprocess(settings("x", **both))
    for name in ("a", "b"):
        for ending in (".bin", ".idx"):
            made, expected = (f"out/{x}_{name}_document{ending}" for x in ("x", "whole"))
            assert Path(made).read_bytes() == Path(expected).read_bytes()
    assert "x.partial" not in outputs()


@pytest.mark.parametrize("stop_at", range(2))
def test_publishing_what_came_through_a_pipe_is_finished_too(
    monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    preprocess(settings("whole", inputs=("a.jsonl",)))
    real = stop_at_rename(monkeypatch, stop_at)
    with open("a.jsonl") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", pipe)
        with pytest.raises(KeyboardInterrupt):
            preprocess(settings("x", inputs=("-",)))
    monkeypatch.setattr(unfinished.os, "replace", real)
    files = [unfinished.OutputFile("text", "out/x_text_document", np.dtype("<u2"))]
    with unfinished.Unfinished("out/x", files, "mmap", 1):
        assert content("x") == content("whole")


def test_a_pipe_has_no_parts() -> None:
    for partitions, number in ((1, 0), (2, None)):
        with pytest.raises(DataError, match="a pipe cannot be cut into parts"):
            preprocess(settings("a", inputs=("-",), partitions=partitions, partition=number))


# The tool, with every chunk kept at once.
TOOL = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from megatron.preprocessing import cli, part
part.COMMIT_SECONDS = 0.0
from megatron.errors import run_door
run_door(cli.main)
"""


def command(workers: int) -> list[str]:
    inputs = ["--input", *["big.jsonl"] * 3, "big.jsonl.zst", "--output-prefix", "out/a"]
    options = ["--tokenizer-type", "CharLevelTokenizer", "--workers", str(workers)]
    return [sys.executable, "-c", TOOL, *inputs, *options]


@pytest.fixture
def big() -> tuple[bytes, bytes]:
    """A corpus of sixteen chunks; the files that it must give, from the description of their format."""
    texts = [b"%d %s" % (i, b"x" * (i % 991)) for i in range(4_000)]
    lines = b"".join(b'{"text": "%s"}\n' % text for text in texts)
    Path("big.jsonl").write_bytes(lines)
    Path("big.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines))
    tokens = np.frombuffer(b"".join(texts) * 4, np.uint8).astype("<u2")
    sizes = np.array([len(text) for text in texts] * 4, "<i4")
    starts = 2 * (np.cumsum(sizes, dtype="<i8") - sizes)
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1)
    index += sizes.tobytes() + starts.tobytes() + np.arange(len(sizes) + 1, dtype="<i8").tobytes()
    return tokens.tobytes(), index


@pytest.mark.ranks
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_goes_on(number: signal.Signals, big: tuple[bytes, bytes]) -> None:
    process = subprocess.Popen(command(2), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    journal = Path("out/a.partial/part-0-of-1.journal")
    deadline = time.monotonic() + 60
    while not journal.exists() or journal.read_bytes().count(b"\n") < 4:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert outputs() == ["a.partial"]
    done = subprocess.run(command(1), capture_output=True, text=True, check=True, timeout=60)
    assert "of the input were done by an earlier run" in done.stdout
    assert content("a") == big
    assert "a.partial" not in outputs()


@pytest.mark.ranks
def test_a_full_disk_loses_nothing(big: tuple[bytes, bytes]) -> None:
    limited = ["bash", "-c", 'ulimit -f 6000; exec "$@"', "-", *command(1)]
    full = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=60)
    assert full.returncode == 2
    assert "out/a.partial: cannot be written: File too large" in full.stderr
    assert outputs() == ["a.partial"]
    done = subprocess.run(command(1), capture_output=True, text=True, check=True, timeout=60)
    assert "of the input were done by an earlier run" in done.stdout
    assert content("a") == big


@pytest.mark.ranks
def test_more_parts_than_files_may_be_open(big: tuple[bytes, bytes]) -> None:
    few = ["bash", "-c", 'ulimit -n 40; exec "$@"', "-", *command(1), "--partitions", "60"]
    subprocess.run(few, check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert content("a") == big


def test_afresh_with_another_number_of_parts(interrupts: Interrupts) -> None:
    preprocess(settings("whole"))
    preprocess(settings("a", partitions=2, partition=1))
    for number in range(3):
        preprocess(settings("a", partitions=3, partition=number, afresh=True))
    assert interrupts.rest(settings("a", partitions=3)) == 0
    assert content("a") == content("whole")
