"""Protects what stage 3 partitions: everything from the first layer on, with the values of any layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from megatron.neox_arguments import NeoXArgs
from megatron.optimizers import weight_decay_groups
from megatron.runtime.partitioned import gathered, is_partitioned, whole_numel, whole_shape
from megatron.runtime.world import World
from megatron.training.setup import build_engine, build_model, build_parts
from tests.support.ranks import run_ranks
from tests.support.tiny import tiny_config


def test_what_is_whole_is_taken_as_it_is() -> None:
    parameter = nn.Parameter(torch.ones(2, 3))
    assert not is_partitioned(parameter)
    assert whole_shape(parameter) == (2, 3)
    assert whole_numel(parameter) == 6
    with gathered([parameter], changes=True):
        assert parameter.shape == (2, 3)


def built(world: World, config: dict[str, Any]) -> dict[str, Any]:
    """What is seen while the model is made, after it, and inside each layer's pass."""
    args = NeoXArgs.from_dict(config, world_size=world.size)
    parts = build_parts(args, world)
    expected = dict(build_model(args, parts).named_parameters())
    model = build_model(args, parts, partitioned=True)
    seen: dict[str, Any] = {"shapes": {tuple(p.shape) for p in model.parameters()}}
    seen["held"] = {n: p.ds_tensor.numel() for n, p in model.named_parameters()}
    seen["equal"] = {}
    for name, parameter in model.named_parameters():
        with gathered([parameter]):
            seen["equal"][name] = torch.equal(parameter, expected[name])
        assert whole_shape(parameter) == expected[name].shape
        assert whole_numel(parameter) == expected[name].numel()
    seen["groups"] = [len(group["params"]) for group in weight_decay_groups(model, 0.1)]
    engine = build_engine(args, parts, model)
    whole: dict[str, set[str]] = {}

    def look(name: str) -> Any:
        def hook(*_: object) -> None:
            whole[name] = {n for n, p in model.named_parameters() if p.numel()}

        return hook

    for number, layer in enumerate(model.sequential):
        layer.register_forward_hook(look(f"after {number}"))
    # Behind DeepSpeed's own hooks, which gather.
    model.sequential[3].mlp.linear1.register_forward_pre_hook(look("in linear1"))
    model.sequential[-1].register_forward_pre_hook(look("in the head"))
    # The second and third pass know what comes: the first one traces it.
    for _ in range(3):
        engine(torch.zeros(2, 16, dtype=torch.long))
    seen["whole"] = whole
    return seen


@pytest.mark.ranks
def test_layers_are_partitioned_as_they_are_made_and_gathered_where_they_compute(
    tmp_path: Path,
) -> None:
    zero = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_prefetch_bucket_size": 0,
    }
    config = tiny_config(
        tmp_path,
        zero_optimization=zero,
        no_weight_tying=False,
        train_batch_size=4,
        train_micro_batch_size_per_gpu=2,
        gradient_accumulation_steps=1,
    )
    for seen in run_ranks(2, built, config):
        assert seen["shapes"] == {(0,)}
        assert seen["held"]["sequential.2.mlp.linear1.weight"] == 4 * 32 * 32 // 2
        assert len(seen["equal"]) == 27
        assert all(seen["equal"].values())
        assert seen["groups"] == [9, 18]  # an embedding and four matrices in each of two layers
        assert seen["whole"].pop("in linear1") == {
            "sequential.3.mlp.linear1.weight",
            "sequential.3.mlp.linear1.bias",
        }
        embedding = {"sequential.0.word_embeddings.weight"}
        assert seen["whole"].pop("in the head") == embedding
        # Behind each layer nothing is left whole.
        assert set(map(frozenset, seen["whole"].values())) == {frozenset()}
