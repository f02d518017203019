"""Files of tensors: how they are cut, and how a cut is found again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from megatron.conversion.hf_folder import TensorFolder, read_json
from megatron.conversion.shards import bytes_in, write_tensors
from megatron.errors import CheckpointError

INDEX = "model.safetensors.index.json"


def write(folder: Path, groups: list[dict[str, Tensor]], most: int) -> int:
    def read(number: int) -> Mapping[str, Tensor]:
        return groups[number]

    shapes = [{name: tuple(t.shape) for name, t in group.items()} for group in groups]
    return write_tensors(folder, shapes, read, dtype=torch.float32, max_shard_size=most)


def numbers(count: int) -> Tensor:
    return torch.arange(float(count))


def test_groups_stay_together(tmp_path: Path) -> None:
    """24 bytes a file: a and b fill one, c is too large for any, d and e are one group."""
    groups = [
        {"a": numbers(4)},
        {"b": numbers(2)},
        {"c": numbers(9)},
        {"d": numbers(1), "e": numbers(2)},
    ]
    assert write(tmp_path, groups, 24) == 72
    files = {path.name: set(load_file(path)) for path in tmp_path.glob("*.safetensors")}
    assert files == {
        "model-00001-of-00003.safetensors": {"a", "b"},
        "model-00002-of-00003.safetensors": {"c"},
        "model-00003-of-00003.safetensors": {"d", "e"},
    }
    index = json.loads((tmp_path / INDEX).read_bytes())
    assert index["metadata"] == {"total_size": 72}
    assert index["weight_map"]["e"] == "model-00003-of-00003.safetensors"
    folder = TensorFolder(tmp_path)
    assert folder.names == {"a", "b", "c", "d", "e"}
    assert folder.shape("c") == (9,)
    assert folder.read("e").tolist() == [0.0, 1.0]


def test_what_fits_into_one_file_has_no_index(tmp_path: Path) -> None:
    whole = numbers(6).view(3, 2)
    write(tmp_path, [{"top": whole[:1], "rest": whole[1:]}], 24)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert TensorFolder(tmp_path).read("rest").tolist() == [[2.0, 3.0], [4.0, 5.0]]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(4, 80))
def test_everything_comes_back(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], most: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    groups = [{f"t{number}": numbers(count)} for number, count in enumerate(counts)]
    assert write(folder, groups, most) == 4 * sum(counts)
    found = TensorFolder(folder)
    assert [len(found.read(f"t{number}")) for number in range(len(counts))] == counts
    sizes = [4 * sum(map(len, load_file(path).values())) for path in folder.glob("*.safetensors")]
    assert all(size <= max(most, 4 * max(counts)) for size in sizes)


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("1.5 MiB", 3 * 2**19), ("200", 200), ("7k", 7000), ("1Gi", 2**30)],
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_in(text) == size


@pytest.mark.parametrize("text", ["", "much", "5XB", "0", "1.2.3GB", "-5GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(CheckpointError, match="max_shard_size"):
        bytes_in(text)


def test_an_index_that_does_not_fit_its_files(tmp_path: Path) -> None:
    write(tmp_path, [{"a": numbers(4)}, {"b": numbers(4)}], 16)
    index = json.loads((tmp_path / INDEX).read_bytes())
    wrong = {**index["weight_map"], "c": "model-00001-of-00002.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": wrong}))
    with pytest.raises(CheckpointError, match="c is missing, model"):
        TensorFolder(tmp_path)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(CheckpointError, match="holds no weight_map"):
        TensorFolder(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps(index))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="safetensors is missing"):
        TensorFolder(tmp_path)


@pytest.mark.parametrize("text", ["[1]", "{", ""])
def test_what_is_no_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"x\.json"):
        read_json(tmp_path / "x.json")
