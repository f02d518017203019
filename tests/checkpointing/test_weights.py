"""Weights from files of every kind, and from none that could run code."""

from __future__ import annotations

import os
import random
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from megatron.checkpointing import CheckpointInfo, load_weights, read_weights
from megatron.checkpointing.tensor_files import read_safely, read_weights_file
from megatron.errors import CheckpointError


def info(folder: Path) -> CheckpointInfo:
    return CheckpointInfo(folder, 7, None)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))


def write(path: Path, content: Any, **more: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path, **more)


def message(folder: Path, **more: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_weights(net(), info(folder), **more)
    assert len(str(caught.value).splitlines()) <= 10
    return str(caught.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_as_gpt_neox_writes_it(tmp_path: Path, zipped: bool) -> None:
    source = net()
    module = dict(source.state_dict())
    module["0.attention.rotary_emb.inv_freq"] = torch.ones(2)
    content = {
        "module": module,
        "optimizer": None,
        "iteration": 7,
        "args": {"num_layers": 2},
        "random_rng_state": random.getstate(),
        "np_rng_state": np.random.RandomState(1).get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "shapes": [torch.Size([2, 3])],
        "dtype": torch.bfloat16,
    }
    path = tmp_path / "mp_rank_00_model_states.pt"
    write(path, content, _use_new_zipfile_serialization=zipped)
    target = net().to(torch.bfloat16)
    load_weights(target, info(tmp_path))
    for name, value in target.state_dict().items():
        assert torch.equal(value, source.state_dict()[name].to(torch.bfloat16))


def test_layer_files_of_a_pipeline(tmp_path: Path) -> None:
    write(tmp_path / "mp_rank_00_model_states.pt", {"module": None})
    write(tmp_path / "mp_rank_01_model_states.pt", {"module": None})
    for rank in (0, 1):
        write(
            tmp_path / f"layer_00-model_{rank:02d}-model_states.pt",
            {"word_embeddings.weight": torch.full((1,), float(rank))},
        )
        write(
            tmp_path / f"layer_12-model_{rank:02d}-model_states.pt",
            {"norm.scale": torch.full((1,), 10.0 + rank), "rotary_emb.inv_freq": torch.ones(1)},
        )
    weights = read_weights(info(tmp_path), model_rank=1, model_parallel_size=2)
    assert {name: tensor.item() for name, tensor in weights.items()} == {
        "sequential.0.word_embeddings.weight": 1.0,
        "sequential.12.norm.scale": 11.0,
    }
    assert "split among 2 model-parallel ranks" in message(tmp_path)


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("/tmp/neox-evil-was-here",)


def test_code_in_a_file_does_not_run(tmp_path: Path) -> None:
    source = net()
    write(tmp_path / "mp_rank_00_model_states.pt", {"module": source.state_dict(), "x": Evil()})
    target = net()
    load_weights(target, info(tmp_path))
    for name, value in target.state_dict().items():
        assert torch.equal(value, source.state_dict()[name])
    assert not os.path.exists("/tmp/neox-evil-was-here")


def test_code_in_a_file_of_ours_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "optimizer.pt", {"x": Evil()})
    with pytest.raises(CheckpointError) as caught:
        read_safely(tmp_path / "optimizer.pt")
    assert "posix.mkdir" in str(caught.value)
    assert "could run code" in str(caught.value)
    assert not os.path.exists("/tmp/neox-evil-was-here")


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", "is damaged"), (b"PK\x03\x04garbage", "is damaged"), (b"\x80\x02garbage", "is damaged")],
)
def test_files_that_are_no_such_files(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "mp_rank_00_model_states.pt").write_bytes(content)
    text = message(tmp_path)
    assert expected in text
    assert "mp_rank_00_model_states.pt" in text


def test_a_cut_file(tmp_path: Path) -> None:
    path = tmp_path / "mp_rank_00_model_states.pt"
    write(path, {"module": dict(net().state_dict())})
    os.truncate(path, path.stat().st_size // 2)
    assert "is damaged" in message(tmp_path)


@pytest.mark.parametrize("content", [{"other": 1}, {"module": None}, {"module": {}}])
def test_no_weights_in_it(tmp_path: Path, content: dict[str, Any]) -> None:
    write(tmp_path / "mp_rank_00_model_states.pt", content)
    assert "holds no weights" in message(tmp_path)


def test_no_files(tmp_path: Path) -> None:
    assert "expected: mp_rank_00_model_states.pt" in message(tmp_path)


def test_another_model_changes_nothing(tmp_path: Path) -> None:
    module = dict(net().state_dict())
    module["0.weight"] = torch.ones(3, 5)
    module["2.bias"] = module.pop("1.bias")
    write(tmp_path / "mp_rank_00_model_states.pt", {"module": module})
    target = net()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_weights(target, info(tmp_path))
    assert "not there: 1.bias\n" in str(caught.value)
    assert "not in the model: 2.bias\n" in str(caught.value)
    assert "shapes: 0.weight: (3, 5), the model has (3, 2)\n" in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in target.state_dict().items())


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("zipped", [True, False])
def test_whatever_byte_is_wrong_it_is_said_or_does_not_matter(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "weights.pt"
    content = {"module": {"a": torch.ones(2)}, "args": Namespace(number=1)}
    write(path, content, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    said: list[str] = []
    for place in range(0, min(len(whole), 700), 3):
        for value in (0x2E, 0xFF):  # the end of a pickle; of no meaning
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                read_weights_file(path)
            except CheckpointError as error:
                said.append(str(error))
    assert len(said) > 100
    assert all("weights.pt" in text for text in said)
