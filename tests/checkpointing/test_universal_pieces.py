"""Protects that a rank's part of a parameter is the same, whoever held the parts of which it is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from megatron.checkpointing import CheckpointInfo
from megatron.checkpointing.universal import VALUE, EngineState, Shape
from megatron.checkpointing.universal_pieces import (
    Part,
    PartReader,
    require_same_model,
    whole_shapes,
)
from megatron.errors import CheckpointError
from megatron.model import layout
from megatron.neox_arguments.sections import ModelArgs

HIDDEN, VOCAB = 16, 10
INFO = CheckpointInfo(Path("/x/global_step5"), 5, None)
# Of the names inside layer 2; the embedding is layer 0.
WHOLE: dict[str, tuple[int, ...]] = {
    "input_layernorm.weight": (HIDDEN,),
    "attention.dense.weight": (HIDDEN, HIDDEN),
    "mlp.linear1.weight": (32, HIDDEN),
    "mlp.linear1.bias": (32,),
    "mlp.linear2.weight": (HIDDEN, 16),
}


def model_of(kv_heads: int) -> ModelArgs:
    return ModelArgs(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=8,
        num_kv_heads=kv_heads,
        intermediate_size=48,
        activation="swiglu",
        seq_length=8,
        max_position_embeddings=8,
    )


def tensors_of(model: ModelArgs) -> dict[str, Tensor]:
    rows = sum(layout.query_key_value_rows(model))
    shapes = WHOLE | {
        "attention.query_key_value.weight": (rows, HIDDEN),
        "attention.query_key_value.bias": (rows,),
    }
    generator = torch.Generator().manual_seed(1)
    return {
        f"sequential.2.{name}": torch.rand(shape, generator=generator)
        for name, shape in shapes.items()
    }


class Ranks:
    """Parts as ``size`` model-parallel ranks hold them."""

    states = (VALUE,)
    engine = EngineState()
    vocab_size: int | None = VOCAB

    def __init__(self, model: ModelArgs, tensors: Mapping[str, Tensor], size: int) -> None:
        self.size = size
        self.parts = [self._of(model, tensors, rank) for rank in range(size)]
        self.shapes: dict[str, Shape] = {
            name: tuple(tensor.shape) for name, tensor in self.parts[0].items()
        }

    def _of(self, model: ModelArgs, tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
        found = {}
        for name, tensor in tensors.items():
            layer, inner = name.rsplit(".", 1)
            names = [inner]
            if "query_key_value" in name and model.kv_heads < self.size:
                names = [f"query_{inner}", f"key_value_{inner}"]
            for kind in names:
                local = f"{layer}.{kind}"
                split = layout.partition(model, local.split(".", 2)[2], tensor.shape)
                found[local] = layout.take_shard(tensor, split, rank, self.size)
        return found

    def read(self, state: str, name: str, rank: int) -> Tensor:
        return self.parts[rank][name]


@pytest.mark.parametrize("kv_heads", [8, 4, 2, 1])
def test_every_number_of_ranks_reads_every_other(kv_heads: int) -> None:
    model = model_of(kv_heads)
    tensors = tensors_of(model)
    for source in (1, 2, 4):
        store = Ranks(model, tensors, source)
        assert whole_shapes(store, model) == {n: tuple(t.shape) for n, t in tensors.items()}
        reader = PartReader(store, model)
        for target in (1, 2, 4):
            wanted = Ranks(model, tensors, target)
            require_same_model(INFO, store, model, nn.Identity(), wanted.shapes, target)
            for rank, parts in enumerate(wanted.parts):
                for name, part in parts.items():
                    found = reader.read(VALUE, Part(name, wanted.shapes[name], rank, target))
                    assert torch.equal(found, part), (source, target, rank, name)


def embedding(rows: int) -> dict[str, Tensor]:
    """Row n holds n; those behind the vocabulary hold -1."""
    numbers = torch.arange(float(rows))
    numbers[VOCAB:] = -1
    return {"sequential.0.word_embeddings.weight": numbers[:, None].expand(rows, 3)}


@pytest.mark.parametrize(
    ("there", "wanted", "last_rows"),
    [
        (12, 16, [9, -1, -1, -1, -1, -1, -1]),
        (16, 12, [9, -1, -1]),
        (10, 12, [9, 0, 0]),
        (12, 10, [9]),
    ],
)
def test_padding_of_the_vocabulary_is_cut_or_made(
    there: int, wanted: int, last_rows: list[float]
) -> None:
    model = model_of(8)
    store = Ranks(model, embedding(there), 2)
    (name,) = store.shapes
    reader = PartReader(store, model)
    halves = [reader.read(VALUE, Part(name, (wanted // 2, 3), rank, 2)) for rank in range(2)]
    rows = torch.cat(halves)[:, 0].tolist()
    assert rows[:9] == list(range(9))
    assert rows[9:] == last_rows


def test_another_model_is_refused() -> None:
    model = model_of(8)
    tensors = tensors_of(model) | embedding(12)
    store = Ranks(model, tensors, 2)

    def refusal(changes: Mapping[str, Shape], without: str = "nothing") -> str:
        targets = {name: shape for name, shape in store.shapes.items() if without not in name}
        with pytest.raises(CheckpointError, match="are not this model's") as caught:
            require_same_model(INFO, store, model, nn.Identity(), targets | changes, 2)
        return str(caught.value)

    said = refusal({"sequential.2.input_layernorm.weight": (HIDDEN + 1,)})
    assert "shapes: sequential.2.input_layernorm.weight: (16,), the model has (17,)" in said
    assert "not there: sequential.3.norm.weight" in refusal({"sequential.3.norm.weight": (16,)})
    assert "not in the model: sequential.2.attention.dense.weight" in refusal({}, "dense")
    said = refusal({"sequential.0.word_embeddings.weight": (4, 3)})  # rows of ids would be lost
    assert "sequential.0.word_embeddings.weight: (12, 3), the model has (8, 3)" in said
