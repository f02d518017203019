"""Protects what bad input gets: a short message that helps, a status that is not 0, nothing half-written."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron.checkpointing.save_folder import LOCK_NAME
from megatron.data.indexed_dataset import MMapIndexedDatasetBuilder
from tests.support.doors import Done, door, doors, finish, start
from tests.support.tiny import tiny_config, write_tokens

pytestmark = pytest.mark.ranks


def write_config(folder: Path, **changes: Any) -> None:
    (folder / "tiny.yml").write_text(json.dumps(tiny_config(Path(), **changes)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokens(tmp_path / "data" / "tiny")
    write_config(tmp_path, train_iters=2, eval_iters=0)
    return tmp_path


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file but the index store's, whose entries are whole or not there by themselves."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "index_store" not in path.parts and not path.name.startswith(".said")
    }


def complaint(done: Done, *parts: str) -> str:
    """What the program said on its way out, if that is what a user deserves."""
    assert done.status == 2, done.all
    assert "Traceback" not in done.out + done.err
    assert 0 < len(done.err.splitlines()) <= 10, done.err
    assert max(map(len, done.err.splitlines())) < 300
    for part in parts:
        assert part in done.err, (part, done.err)
    return done.err


def train(folder: Path, *arguments: str, **options: Any) -> Done:
    return door("train.py", "--config-file", "tiny.yml", *arguments, folder=folder, **options)


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (
            lambda folder: shutil.move(folder / "data" / "tiny.idx", folder / "data" / "other.idx"),
            [
                "error: tiny.yml:1: data_path: data/tiny.idx: no such file",
                "data_path",
                "preprocess_data.py",
            ],
        ),
        (
            lambda folder: _cut(folder / "data" / "tiny.bin", 7),
            ["data/tiny.bin: has ", "data/tiny.idx asks for ", "copy both again"],
        ),
        (
            lambda folder: _overwrite(folder / "data" / "tiny.idx", b"NOTTOKENS"),
            ["data/tiny.idx: starts with b'NOTTOKENS'", r"expected b'MMIDIDX\x00\x00'", "anew"],
        ),
        (
            lambda folder: write_tokens(folder / "data" / "tiny", vocab=30_000),
            ["data/tiny.bin: token 0 of document 0 has the id ", "from 0 to 511", "vocab_file"],
        ),
        (
            lambda folder: write_tokens(folder / "data" / "tiny", documents=1, length=9),
            ["data/tiny: the train split has 1 of 1 documents", "0 whole samples", "more text"],
        ),
    ],
    ids=["no-prefix", "short-bin", "wrong-magic", "other-vocabulary", "too-small"],
)
def test_bad_data(folder: Path, damage: Any, parts: list[str]) -> None:
    damage(folder)
    before = files_of(folder)
    complaint(train(folder), *parts)
    assert files_of(folder) == before


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:-size])


def _overwrite(path: Path, begin: bytes) -> None:
    path.write_bytes(begin + path.read_bytes()[len(begin) :])


def test_a_corpus_smaller_than_a_sample_per_rank(folder: Path) -> None:
    write_tokens(folder / "data" / "tiny", documents=2, length=12)
    write_config(folder, split="1,0,0")
    before = files_of(folder)
    ended = doors(2, "train.py", "--config-file", "tiny.yml", folder=folder)
    # Both ranks end by themselves; which of them speaks is theirs to agree on.
    assert [done.status for done in ended] == [2, 2]
    said = [done for done in ended if done.err]
    assert len(said) == 1
    complaint(
        said[0],
        "data/tiny: the train split",
        "1 whole sample",
        "2 data-parallel ranks",
        "fewer ranks",
    )
    assert files_of(folder) == before


def test_a_vocabulary_file_that_is_not_there(folder: Path) -> None:
    write_config(folder, tokenizer_type="HFTokenizer", vocab_file="nowhere.json")
    complaint(train(folder), "error: tiny.yml:1: vocab_file: nowhere.json: cannot be read")


def test_a_checkpoint_with_a_file_cut(folder: Path) -> None:
    assert train(folder).status == 0
    _cut(folder / "checkpoints" / "global_step2" / "mp_rank_00_model_states.pt", 7)
    before = files_of(folder)
    parts = [
        "checkpoints/global_step2",
        "mp_rank_00_model_states.pt has ",
        "the manifest says ",
        "restore it",
    ]
    complaint(train(folder, "--set", "train_iters=4"), *parts)
    complaint(door("eval.py", "tiny.yml", folder=folder), *parts)
    complaint(door("generate.py", "tiny.yml", "-o", "out.jsonl", folder=folder), *parts)
    assert files_of(folder) == before


def test_a_world_that_does_not_fit(folder: Path) -> None:
    before = files_of(folder)
    equation = [
        "tiny.yml:",
        "train_batch_size",
        "8 / (train_micro_batch_size_per_gpu 2 x data-parallel ranks 3)",
    ]
    # Three ranks of any launcher: each sees it before it meets the others.
    ended = doors(3, "train.py", "--config-file", "tiny.yml", folder=folder)
    assert [done.status for done in ended] == [2, 2, 2]
    complaint(ended[0], *equation)
    assert [done.err for done in ended[1:]] == ["", ""]
    # deepy.py starts nothing.
    complaint(
        finish(start("deepy.py", "--num_gpus", "3", "train.py", "tiny.yml", folder=folder)),
        *equation,
    )
    assert files_of(folder) == before


def test_a_port_in_use(folder: Path) -> None:
    before = files_of(folder)
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        variables = {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        complaint(train(folder, variables=variables), f"127.0.0.1:{port}", "in use", "master_port")
        deepy = start(
            "deepy.py",
            "--num_gpus",
            "2",
            "--master_port",
            port,
            "train.py",
            "tiny.yml",
            folder=folder,
        )
        complaint(finish(deepy), f"master_port: {port}", "in use", "free port")
    assert files_of(folder) == before


@pytest.mark.slow
def test_a_mistake_that_one_rank_meets_late(folder: Path) -> None:
    """Through deepy.py and in the middle of training: one rank speaks, for all, and all end."""
    prefix = folder / "data" / "late"
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", np.uint16)
    # A start looks at the first million tokens.
    for number in range(1100):
        tokens = np.full(1000, 65, np.uint16)
        tokens[::50] = 700 if number > 1010 else 66
        builder.add_item(tokens)
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    options = [
        f"data_path={prefix}",
        "split=1,0,0",
        "train_iters=1000",
        "num_workers=1",
        "eval_interval=2000",
    ]
    arguments = [word for option in options for word in ("--set", option)]
    done = finish(
        start("deepy.py", "--num_gpus", "2", "train.py", "tiny.yml", *arguments, folder=folder)
    )
    complaint(done, "late.bin: token ", "has the id 700", "from 0 to 511", "vocab_file")
    speaker, *_, summary = done.err.splitlines()
    rank = speaker[len("rank ")]
    assert speaker.startswith(f"rank {rank}: error: ")
    assert summary == f"deepy.py: rank {rank} of 2 ended with status 2; the others were stopped"
    assert " 1/1000 | loss " in done.out
    left = {path.name for path in (folder / "checkpoints").iterdir()}
    # A rank that is stopped while it ends leaves its lock, which went with the process, in its file.
    assert left - {LOCK_NAME} == {"metrics.jsonl"}
