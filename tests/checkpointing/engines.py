"""Tiny real DeepSpeed engines, and what a test wants to know about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from megatron.checkpointing import save_checkpoint
from megatron.errors import CheckpointError
from megatron.runtime.stock_deepspeed import deepspeed
from megatron.runtime.world import World


class TinyNet(nn.Module):
    """Two layers, weights that follow from ``seed`` alone."""

    def __init__(self, seed: int = 1, width: int = 6) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(4, width)
        self.norm = nn.LayerNorm(width)
        self.second = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)))


class ListedNet(nn.Module):
    """A list of one layer, under the names that stage 3's files of weights need."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.sequential = nn.ModuleList([TinyNet(seed)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sequential[0](x)


def make_engine(
    stage: int, bf16: bool = False, seed: int = 1, lr: float = 0.05, node_local: bool = False
) -> Any:
    module = ListedNet(seed) if stage == 3 else TinyNet(seed)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": bf16},
        "checkpoint": {"use_node_local_storage": node_local},
        "optimizer": {
            "type": "Adam",
            "params": {"lr": lr, "weight_decay": 0.0, "torch_adam": True},
        },
    }
    engine, *_ = deepspeed.initialize(
        model=module, model_parameters=module.parameters(), config=config
    )
    return engine


def train(engine: Any, world: World, first_step: int, steps: int) -> list[float]:
    """Losses of ``steps`` optimizer steps on data that follow from step and rank."""
    losses = []
    dtype = next(engine.module.parameters()).dtype
    for step in range(first_step, first_step + steps):
        generator = torch.Generator().manual_seed(1000 * step + world.rank)
        x = torch.randn(2, 4, generator=generator).to(dtype)
        loss = (engine(x) - x.sum(1, keepdim=True)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@dataclass(frozen=True)
class Config:
    """A configuration file as :mod:`megatron.neox_arguments` hands it over."""

    path: Path
    text: str


def save(engine: Any, world: World, root: str | Path, step: int, **more: Any) -> Path:
    arguments: dict[str, Any] = {
        "state": {"consumed_samples": 4 * step, "loss_sum": 0.1 + 0.2},
        "config_files": [
            Config(Path("a/run.yml"), "seed: 1\n"),
            Config(Path("b/run.yml"), "x: 2\n"),
        ],
        "config_flat": {"seed": 1, "x": 2},
        "layout": {"data_parallel_size": world.size},
    } | more
    return save_checkpoint(engine, save_dir=root, step=step, world=world, **arguments)


def error_of(action: Callable[[], object]) -> str:
    """The text of the :class:`CheckpointError` that ``action`` must raise."""
    with pytest.raises(CheckpointError) as caught:
        action()
    assert caught.value.everywhere
    return str(caught.value)


def weights_of(module: nn.Module) -> dict[str, list[float]]:
    return {name: t.float().flatten().tolist() for name, t in module.state_dict().items()}
