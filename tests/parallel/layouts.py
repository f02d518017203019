"""One model on any layout of ranks: its configuration, its training, and its weights put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from megatron.data.step_batch import StepBatch
from megatron.model import layout
from megatron.mpu import ParallelGroups
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.partitioned import gathered
from megatron.runtime.world import World
from megatron.training.pipeline_step import step_of
from megatron.training.setup import Parts, build_engine, build_model, build_parts, model_of
from megatron.training.step import StepSettings
from tests.support.tiny import tiny_config
from tests.support.whole_layers import join_layer

STEPS, BATCH, LENGTH = 20, 8, 16
# The norm of the gradient is above this in some steps and below it in others.
CLIPPING = 1.0
# Numbers in the longest vector of parameters; in the smallest part of a matrix there are more.
VECTORS = 200
_NOWHERE = Path("nowhere")  # nothing is read or written
Weights = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Layout:
    """Attributes: ``model`` tensor-parallel × ``context``-parallel ranks × ``data`` copies × ``pipe`` stages
    (0: no pipeline engine), ``sequence`` parallelism, ZeRO stage, what is offloaded to the host:
    ``optimizer``, ``param``, or both."""

    model: int = 1
    sequence: bool = False
    data: int = 1
    zero: int = 0
    context: int = 1
    pipe: int = 0
    offload: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return self.model * self.context * self.data * max(1, self.pipe)

    def __str__(self) -> str:
        sequence = "+SP" if self.sequence else ""
        context = f" x CP{self.context}" if self.context > 1 else ""
        pipe = f"PP{self.pipe} x " if self.pipe else ""
        offload = "".join(f", {what} offloaded" for what in self.offload)
        return f"{pipe}TP{self.model}{sequence}{context} x DP{self.data}, ZeRO {self.zero}{offload}"


@dataclass(frozen=True)
class Variant:
    """Attributes: ``kv_heads`` of 4 heads, own weights of the head (``untied``), ``parallel`` residual,
    and what else the configuration says (``options``)."""

    kv_heads: int = 4
    untied: bool = True
    parallel: bool = False
    layers: int = 2
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        names = ("untied" if self.untied else "tied", "parallel" if self.parallel else "sequential")
        more = [f"{key}={value}" for key, value in self.options]
        return f"{self.kv_heads} kv, {', '.join([*names, *more])}"


@dataclass(frozen=True)
class Trained:
    """Attributes: losses and norms of each step, and the weights of the whole model at the end."""

    losses: list[float]
    norms: list[float]
    weights: Weights


def train(
    world: World,
    place: Layout,
    variant: Variant,
    optimizer: str,
    *,
    steps: int = STEPS,
    **changes: Any,
) -> Trained:
    """Train ``steps`` steps on random tokens that depend on nothing but the step."""
    args = NeoXArgs.from_dict(config_of(place, variant, optimizer) | changes, world_size=world.size)
    parts = build_parts(args, world)
    engine = build_engine(args, parts, build_model(args, parts, partitioned=True))
    engine.train()
    settings = StepSettings(
        parts.device,
        parts.groups,
        seed=1,
        has_dropout=args.model.hidden_dropout > 0,
        zero_stage=args.optim.zero_stage,
    )
    train_step = step_of(engine)
    results = [
        train_step(engine, batch_of(step, parts), settings, step=step, learning_rate=args.optim.lr)
        for step in range(steps)
    ]
    return Trained(
        [result.loss for result in results],
        [result.grad_norm for result in results],
        gathered_weights(model_of(engine), parts.groups),
    )


def config_of(place: Layout, variant: Variant, optimizer: str) -> dict[str, Any]:
    # Rates at which 20 steps change a loss by a fifth or more.
    params: dict[str, dict[str, Any]] = {
        "Adam": {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8},
        "SGD": {"lr": 0.3},
    }
    config = tiny_config(
        _NOWHERE,
        model_parallel_size=place.model,
        context_parallel_size=place.context,
        pipe_parallel_size=place.pipe,
        sequence_parallel=place.sequence,
        num_layers=variant.layers,
        num_kv_heads=variant.kv_heads,
        no_weight_tying=variant.untied,
        gpt_j_residual=variant.parallel,
        make_vocab_size_divisible_by=128,
        train_batch_size=BATCH,
        # Two accumulated micro-batches on each rank, whatever their number.
        train_micro_batch_size_per_gpu=BATCH // 2 // place.data,
        optimizer={"type": optimizer, "params": params[optimizer]},
        zero_optimization=_zero(place),
        gradient_clipping=CLIPPING,
        init_method="small_init",
        min_lr=0.0,
        save=None,
        load=None,
    )
    return config | dict(variant.options)


def _zero(place: Layout) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": place.zero}
    zero |= {f"offload_{what}": {"device": "cpu"} for what in place.offload}
    if place.zero == 3:
        # By default stage 3 partitions nothing as small as these models, and frees nothing between uses.
        zero |= dict.fromkeys(("stage3_max_live_parameters", "stage3_max_reuse_distance"), 0)
        # Where gathering costs most, vectors stay whole on each rank, as in models of real size.
        zero["stage3_param_persistence_threshold"] = 0 if place.ranks <= 2 else VECTORS
    return zero


def batch_of(step: int, parts: Parts) -> StepBatch:
    """This rank's part of a step: two micro-batches of all ranks, a part of which each data rank reads,
    and each context rank a part of that.
    """
    generator = torch.Generator().manual_seed(1000 + step)
    # A skewed choice of ids, so that there is something to learn.
    tokens = (torch.rand(2, BATCH // 2, LENGTH + 1, generator=generator) ** 3 * 250).long()
    mask = torch.rand(2, BATCH // 2, LENGTH, generator=generator) < 0.9
    place, grid = parts.groups.place, parts.groups.grid
    batch = StepBatch(
        tokens.chunk(grid.data, dim=1)[place.data].contiguous(),
        mask.chunk(grid.data, dim=1)[place.data].contiguous(),
        first_sample=step * BATCH,
        num_samples=BATCH,
    )
    return batch.part_of_sequences(place.context, grid.context)


def gathered_weights(model: Any, groups: ParallelGroups) -> Weights:
    """The whole model's weights, by their names in a model of one rank.

    Raises:
        AssertionError: what several ranks hold is not the same to the last bit.
    """
    whole: Weights = {}
    for number, layer in model.sequential.named_children():
        with gathered(layer.parameters()):
            mine = {name: p.detach().clone() for name, p in layer.named_parameters()}
        _require_one_model(mine, groups)
        shards = _of_all_ranks(mine, groups)
        _require_equal_copies(model, shards, groups)
        for name, tensor in join_layer(model.model_args, shards).items():
            whole[f"{number}.{name}"] = tensor.float().numpy().copy()
    return _of_all_stages(whole, groups)


def _of_all_stages(mine: Weights, groups: ParallelGroups) -> Weights:
    size = groups.get_pipe_parallel_world_size()
    if size == 1:
        return mine
    stages: list[Weights] = [{} for _ in range(size)]
    dist.all_gather_object(stages, mine, group=groups.get_pipe_parallel_group())
    whole: Weights = {}
    for stage in stages:
        for name, tensor in stage.items():
            assert np.array_equal(tensor, whole.setdefault(name, tensor)), f"{name} is no copy"
    return whole


def _require_one_model(mine: dict[str, Tensor], groups: ParallelGroups) -> None:
    """Whoever trained on other tokens has the same weights."""
    size = groups.get_gradient_world_size()
    for name, tensor in mine.items() if size > 1 else ():
        copies = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(copies, tensor.contiguous(), group=groups.get_gradient_group())
        assert all(torch.equal(copy, tensor) for copy in copies), f"copies of {name} differ"


def _of_all_ranks(mine: dict[str, Tensor], groups: ParallelGroups) -> list[dict[str, Tensor]]:
    size = groups.get_model_parallel_world_size()
    if size == 1:
        return [mine]
    shards: list[dict[str, Tensor]] = [{} for _ in range(size)]
    for name, tensor in mine.items():
        parts = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(parts, tensor.contiguous(), group=groups.get_model_parallel_group())
        for shard, part in zip(shards, parts, strict=True):
            shard[name] = part
    return shards


def _require_equal_copies(
    model: Any, shards: Sequence[dict[str, Tensor]], groups: ParallelGroups
) -> None:
    for name in shards[0]:
        split = layout.partition(model.model_args, name, shards[0][name].shape)
        different = 1 if split is None else split.parts(len(shards))
        copies = len(shards) // different
        for rank, shard in enumerate(shards):
            first = shards[rank // copies * copies]
            assert torch.equal(shard[name], first[name]), f"{name} of rank {rank} is no copy"
