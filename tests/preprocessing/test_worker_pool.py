"""The pool: order, errors in the order of the input, dead workers, bounds. Real processes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from encoder_recipes import Scripted

from megatron.errors import DataError
from megatron.preprocessing.pool import WorkerPool
from megatron.preprocessing.readers import TextChunk

pytestmark = pytest.mark.ranks


def chunks(*texts: str) -> list[TextChunk]:
    return [TextChunk("f.jsonl", i, text.encode(), 0) for i, text in enumerate(texts, start=1)]


def encode(texts: list[str], workers: int, recipe: Scripted = Scripted()) -> list[int]:  # noqa: B008
    with WorkerPool(recipe, workers) as pool:
        return [int(answer.keys[0].tokens[0]) for answer in pool.encode(chunks(*texts))]


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_keep_the_order_of_the_chunks(workers: int) -> None:
    texts = ["sleep 0.3", "", "", "sleep 0.05", "", "", "", ""]
    assert encode(texts, workers) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_nothing_to_do() -> None:
    assert encode([], 2) == []


def test_the_first_error_of_the_input_wins_whoever_is_first() -> None:
    with pytest.raises(DataError, match="early"):
        encode(["sleep 0.5", "sleep 0.5", "user-error early", "user-error late"], 4)


def test_an_error_of_an_earlier_line_comes_before_one_of_the_reader() -> None:
    def source() -> Iterator[TextChunk]:
        yield from chunks("sleep 0.3", "user-error line")
        raise DataError("the file is cut")

    with pytest.raises(DataError, match="line"), WorkerPool(Scripted(), 2) as pool:
        list(pool.encode(source()))


def test_an_error_of_the_reader_comes_after_what_was_read() -> None:
    def source() -> Iterator[TextChunk]:
        yield from chunks("", "sleep 0.2")
        raise DataError("the file is cut")

    done = []
    with pytest.raises(DataError, match="the file is cut"), WorkerPool(Scripted(), 2) as pool:
        done.extend(pool.encode(source()))
    assert len(done) == 2


@pytest.mark.parametrize(
    ("how", "what"), [("die", "was killed by SIGKILL"), ("exit", "ended with 3")]
)
def test_a_dead_worker_is_an_error_at_once(how: str, what: str) -> None:
    started = time.monotonic()
    with pytest.raises(DataError, match=rf"worker process \d+ {what} at f\.jsonl, line 2 on"):
        encode(["", how, "sleep 60"], 2)
    assert time.monotonic() - started < 10


def test_a_fault_shows_the_workers_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)first_line=1.*in act.*ZeroDivisionError"):
        encode(["fault"], 1)


def test_a_worker_that_cannot_be_built_says_why() -> None:
    with pytest.raises(DataError, match="no tokenizer today"):
        encode(["", ""], 2, Scripted(builds=False))


def test_reading_ahead_is_bounded() -> None:
    handed_on = 0
    furthest = 0

    def source() -> Iterator[TextChunk]:
        nonlocal furthest
        for number, chunk in enumerate(chunks(*[""] * 60), start=1):
            furthest = max(furthest, number - handed_on)
            yield chunk

    with WorkerPool(Scripted(), 2) as pool:
        for _ in pool.encode(source()):
            handed_on += 1
            time.sleep(0.002)  # a slow disk
    assert handed_on == 60
    assert furthest <= 2 * 4 + 1


def test_large_chunks_are_bounded_by_bytes() -> None:
    big = " " * (30 * 1024 * 1024)
    read = []

    def source() -> Iterator[TextChunk]:
        for chunk in chunks("sleep 0.5" + big, big, big, big, big):
            read.append(chunk.first_line)
            yield chunk

    with WorkerPool(Scripted(), 2) as pool:
        answers = pool.encode(source())
        next(answers)
        # 64 MiB hold two of them; the third, read where there is time, passes the bound.
        assert 2 <= len(read) <= 3
        assert len(list(answers)) == 4
