"""Whole steps, with and without workers: same batches, own errors, no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from token_files import data_args, letters, write_documents

from megatron.data.boundaries import Boundaries
from megatron.data.datasets import DataRequest, DataSplits, SampleDataset, build_datasets
from megatron.data.loader import build_step_loader
from megatron.data.splits import SampleCounts
from megatron.data.step_batch import StepBatch
from megatron.errors import DataError
from megatron.runtime.world import World
from tests.support.ranks import run_ranks


def batch(micro: int, accumulation: int, ranks: int = 1) -> SimpleNamespace:
    return SimpleNamespace(
        global_batch_size=micro * accumulation * ranks,
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        data_parallel_size=ranks,
    )


def opened(prefix: Path, samples: int) -> DataSplits:
    """The token file, and so many samples of it to train on."""
    request = DataRequest(
        data_args(prefix), seq_length=8, seed=1, wanted=SampleCounts(samples, 0, 0)
    )
    return build_datasets(request, World())


def dataset(prefix: Path, vocab_size: int | None = None) -> SampleDataset:
    split = opened(prefix, 64).train
    assert split is not None
    split.vocab_size = vocab_size
    return split


@pytest.fixture
def train(tmp_path: Path) -> SampleDataset:
    return dataset(write_documents(tmp_path / "d", letters(60)))


def one_step(train: SampleDataset, sizes: SimpleNamespace, **more: Any) -> StepBatch:
    """What data rank 0 reads of a single step."""
    (step,) = build_step_loader(
        train, **{"first_sample": 0, "num_steps": 1, "batch": sizes, "data_rank": 0, **more}
    )
    return step


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_are_the_samples_of_the_counter(train: SampleDataset, workers: int) -> None:
    sizes = batch(micro=2, accumulation=3, ranks=2)
    loader = build_step_loader(
        train, first_sample=5, num_steps=4, batch=sizes, data_rank=1, num_workers=workers
    )
    steps = list(loader)
    loader.close()
    assert [(step.first_sample, step.num_samples) for step in steps] == [
        (5, 12),
        (17, 12),
        (29, 12),
        (41, 12),
    ]
    for step in steps:
        c = step.first_sample
        numbers = [[c + 2, c + 3], [c + 6, c + 7], [c + 10, c + 11]]
        assert step.tokens.dtype == torch.int64
        assert step.tokens.tolist() == [[train[n].tokens.tolist() for n in row] for row in numbers]
        assert step.loss_mask.shape == (3, 2, 8)
        assert step.loss_mask.dtype == torch.bool
        assert bool(step.loss_mask.all())
    assert list(loader) == []


def test_the_stream_is_the_same_on_any_layout_and_after_a_restart(train: SampleDataset) -> None:
    def stream(sizes: SimpleNamespace, first: int, steps: int) -> list[list[int]]:
        loaders = [
            build_step_loader(
                train,
                first_sample=first,
                num_steps=steps,
                batch=sizes,
                data_rank=rank,
                num_workers=0,
            )
            for rank in range(sizes.data_parallel_size)
        ]
        rows: list[list[int]] = []
        for parts in zip(*loaders, strict=True):
            rows += torch.stack([part.tokens for part in parts], dim=1).reshape(-1, 9).tolist()
        return rows

    whole = stream(batch(8, 1), 0, 6)
    assert stream(batch(2, 4), 0, 6) == whole
    assert stream(batch(2, 2, ranks=2), 0, 6) == whole
    assert stream(batch(1, 2, ranks=4), 0, 6) == whole
    assert stream(batch(8, 1), 0, 2) + stream(batch(4, 1, ranks=2), 16, 4) == whole


def test_ranks_that_share_sequences_get_parts_that_join(tmp_path: Path) -> None:
    train = dataset(write_documents(tmp_path / "d", [[5, 6, 0]] * 200))

    def only(part: tuple[int, int], workers: int = 0) -> StepBatch:
        return one_step(
            train,
            batch(2, 2),
            first_sample=2,
            num_workers=workers,
            eod_id=0,
            boundaries=Boundaries(reset_position_ids=True, reset_attention_mask=True),
            sequence_part=part,
        )

    whole, parts = only((0, 1)), [only((rank, 4), workers=rank % 2) for rank in range(4)]
    for name in ("inputs", "targets", "loss_mask"):
        joined = torch.cat([getattr(part, name) for part in parts], dim=-1)
        assert torch.equal(joined, getattr(whole, name)), name
    for part in parts:
        assert part.tokens.shape == (2, 2, 3)
        assert (part.first_sample, part.num_samples) == (2, 4)
        # Where documents begin is told of whole sequences.
        assert part.documents is not None
        assert whole.documents is not None
        assert torch.equal(part.documents.starts, whole.documents.starts)
        assert part.documents.seq_length == 8


def test_labels_are_shared_like_tokens() -> None:
    labels, tokens = torch.arange(8).view(1, 1, 8), torch.arange(9).view(1, 1, 9)
    whole = StepBatch(tokens, labels > 2, first_sample=0, num_samples=1, labels=labels * 10)
    second = whole.part_of_sequences(1, 2)
    assert second.inputs.tolist() == [[[4, 5, 6, 7]]]
    assert second.targets.tolist() == [[[40, 50, 60, 70]]]
    assert second.loss_mask.tolist() == [[[True] * 4]]
    assert whole.part_of_sequences(0, 2).loss_mask.tolist() == [[[False, False, False, True]]]


def test_what_follows_the_end_of_a_document_is_masked(tmp_path: Path) -> None:
    train = dataset(write_documents(tmp_path / "d", [[5, 6, 0]] * 200))
    for eod, workers in [(0, 0), (None, 0)]:
        step = one_step(train, batch(4, 1), num_workers=workers, eod_id=eod)
        masked = step.tokens[..., :-1] == 0
        assert 8 <= int(masked.sum()) <= 12
        assert torch.equal(~step.loss_mask, masked if eod == 0 else torch.zeros_like(masked))


def test_asking_beyond_the_end_is_refused(train: SampleDataset) -> None:
    last = len(train) // 8
    build_step_loader(
        train, first_sample=0, num_steps=last, batch=batch(8, 1), data_rank=0, num_workers=0
    )
    with pytest.raises(DataError, match=f"has {len(train)} samples, the samples 8 to"):
        build_step_loader(
            train, first_sample=8, num_steps=last, batch=batch(8, 1), data_rank=0, num_workers=0
        )


@pytest.mark.parametrize("workers", [0, 1])
def test_an_id_beyond_the_vocabulary_is_said_with_its_place(tmp_path: Path, workers: int) -> None:
    documents = letters(60)
    documents[41][3] = 700
    train = dataset(write_documents(tmp_path / "d", documents), vocab_size=660)
    loader = build_step_loader(
        train, first_sample=0, num_steps=8, batch=batch(8, 1), data_rank=0, num_workers=workers
    )
    with pytest.raises(DataError) as caught:
        list(loader)
    loader.close()
    assert "token 3 of document 41 has the id 700" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 10


def test_workers_leave_the_default_generator_alone(train: SampleDataset) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    loader = build_step_loader(
        train, first_sample=0, num_steps=2, batch=batch(2, 1), data_rank=0, num_workers=1
    )
    next(loader)
    assert torch.equal(torch.rand(3), expected)
    loader.close()


def workers_of(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_running, pids))


def test_closing_ends_the_workers_and_signals_to_stop_do_not(train: SampleDataset) -> None:
    before = set(workers_of(os.getpid()))
    loader = build_step_loader(
        train, first_sample=0, num_steps=30, batch=batch(2, 1), data_rank=0, num_workers=2
    )
    first = [next(loader) for _ in range(2)]  # one of each worker: both are up
    workers = sorted(set(workers_of(os.getpid())) - before)
    assert len(workers) == 2
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    rest = [next(loader) for _ in range(20)]
    assert [step.first_sample for step in [*first, *rest]] == list(range(0, 44, 2))
    loader.close()
    assert gone(workers)
    assert list(loader) == []


def read_and_lose_a_worker(train: SampleDataset) -> None:
    before = set(workers_of(os.getpid()))
    with build_step_loader(
        train, first_sample=0, num_steps=30, batch=batch(2, 1), data_rank=0, num_workers=1
    ) as loader:
        next(loader)
        os.kill(min(set(workers_of(os.getpid())) - before), signal.SIGKILL)
        time.sleep(10)  # a signal handler raises long before


def test_a_worker_that_is_killed_is_said(train: SampleDataset) -> None:
    with pytest.raises(DataError, match="killed by signal") as caught:
        read_and_lose_a_worker(train)
    assert str(caught.value).startswith("num_workers: ")
    assert "lower num_workers" in str(caught.value)


def read_with_a_fault(train: SampleDataset, workers: list[int]) -> None:
    before, bad = set(workers_of(os.getpid())), SimpleNamespace(global_batch_size=2)
    with build_step_loader(
        train, first_sample=0, num_steps=30, batch=bad, data_rank=0, num_workers=1
    ) as loader:
        workers += set(workers_of(os.getpid())) - before
        next(loader)


def test_an_error_ends_the_workers_although_its_traceback_lives(train: SampleDataset) -> None:
    workers: list[int] = []
    with pytest.raises(AttributeError, match="micro_batch_size") as caught:
        read_with_a_fault(train, workers)
    assert workers != []
    assert gone(workers)
    assert caught.tb is not None  # until here


PARENT = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
from pathlib import Path
from test_loader import batch, dataset, workers_of
from megatron.data.loader import build_step_loader
loader = build_step_loader(dataset(Path({prefix!r})), first_sample=0, num_steps=30, batch=batch(2, 1),
                           data_rank=0, num_workers=2)
next(loader)
import os, time
print(*workers_of(os.getpid()), flush=True)
time.sleep(60)
"""


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", letters(60))
    tests = Path(__file__).parent
    program = PARENT.format(tests=str(tests), root=str(tests.parents[1]), prefix=str(prefix))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) >= 2
        parent.kill()
    assert gone(workers, 2.0)


def read_with_workers(world: World, prefix: Path) -> list[list[list[list[int]]]]:
    """Forked while this process has gloo's threads and traffic on them."""
    torch.distributed.all_reduce(torch.ones(1000))
    loader = build_step_loader(
        dataset(prefix),
        first_sample=0,
        num_steps=4,
        batch=batch(2, 1, ranks=2),
        data_rank=world.rank,
        num_workers=2,
    )
    steps = []
    for step in loader:
        torch.distributed.all_reduce(torch.ones(1000))
        steps.append(step)
    loader.close()
    return [step.tokens.tolist() for step in steps]


@pytest.mark.ranks
def test_workers_of_two_ranks_beside_collectives(train: SampleDataset) -> None:
    prefix = Path(train.data.prefix)
    first, second = run_ranks(2, read_with_workers, prefix)
    for step in range(4):
        c = 4 * step
        assert first[step] == [[train[c].tokens.tolist(), train[c + 1].tokens.tolist()]]
        assert second[step] == [[train[c + 2].tokens.tolist(), train[c + 3].tokens.tolist()]]


def read_and_cut(data: DataSplits, path: Path) -> None:
    assert data.train is not None
    with build_step_loader(
        data.train,
        first_sample=0,
        num_steps=1000,
        batch=batch(micro=2, accumulation=1),
        data_rank=0,
        num_workers=1,
        check_files=data.check_files,
    ) as loader:
        next(loader)
        os.truncate(path, 10)
        list(loader)


def test_a_worker_that_dies_of_a_cut_file_says_so(tmp_path: Path) -> None:
    """Reading what was cut off is a SIGBUS; torch would speak of shared memory."""
    prefix = write_documents(tmp_path / "d", letters(2000))
    data = opened(prefix, 2000)
    data.check_files()
    with pytest.raises(DataError, match=r"d\.bin: has 10 bytes now, 44,000 when it was opened"):
        read_and_cut(data, Path(f"{prefix}.bin"))


def test_an_index_that_is_cut_is_noticed(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", letters(60))
    data = opened(prefix, 6)
    os.truncate(f"{prefix}.idx", 700)
    with pytest.raises(DataError, match=r"d\.idx: has 700 bytes now, 1,242 when it was opened"):
        data.check_files()


def test_a_file_that_is_replaced_does_no_harm(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", letters(60))
    data = opened(prefix, 6)
    Path(f"{prefix}.bin").unlink()
    data.check_files()
    Path(f"{prefix}.bin").write_bytes(b"")
    data.check_files()
    assert data.train is not None
    assert [len(data.train[number].tokens) for number in range(6)] == [9] * 6
