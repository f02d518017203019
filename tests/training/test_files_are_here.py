"""A host that lacks several files of a run hears of all of them at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron.errors import DataError
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.needed_files import check_files_are_here
from tests.support.tiny import tiny_config, write_tokens


@pytest.fixture
def args(tmp_path: Path) -> NeoXArgs:
    config = tiny_config(
        tmp_path,
        tokenizer_type="GPT2BPETokenizer",
        vocab_file=str(tmp_path / "vocab.json"),
        merge_file=str(tmp_path / "merges.txt"),
        data_path=None,
        split=None,
        train_data_paths=[str(tmp_path / "a"), str(tmp_path / "b")],
        train_label_data_paths=[str(tmp_path / "c"), str(tmp_path / "b")],
        valid_data_paths=[str(tmp_path / "a")],
    )
    (tmp_path / "run.yml").write_text(json.dumps(config, indent=1))
    return NeoXArgs.from_ymls([tmp_path / "run.yml"], world_size=1)


def test_all_are_named_where_the_configuration_names_them(args: NeoXArgs, tmp_path: Path) -> None:
    write_tokens(tmp_path / "a")
    (tmp_path / "b.idx").touch()
    (tmp_path / "merges.txt").touch()
    with pytest.raises(DataError) as missing:
        check_files_are_here(args, World(hostname="beta"))
    first, *lines, remedy = str(missing.value).splitlines()
    assert first == "3 files that the configuration names are not on host beta"
    assert [line.split(": ", 1)[1] for line in lines] == [
        f"vocab_file: {tmp_path}/vocab.json: no such file",
        f"train_data_paths: {tmp_path}/b.idx with {tmp_path}/b.bin: no such file",
        f"train_label_data_paths: {tmp_path}/c.idx with {tmp_path}/c.bin: no such file",
    ]
    assert all(line.startswith(f"  {tmp_path}/run.yml:") for line in lines)
    assert remedy.startswith("  to do: copy them there")


def test_one_alone_is_left_to_its_reader(args: NeoXArgs, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_tokens(tmp_path / name)
    (tmp_path / "merges.txt").touch()
    check_files_are_here(args, World())


def test_one_rank_of_each_host_looks(args: NeoXArgs) -> None:
    check_files_are_here(args, World(rank=1, size=2, local_rank=1, local_size=2))
