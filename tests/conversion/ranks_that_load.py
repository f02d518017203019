"""Runs of real ranks between two conversions: they load imported weights, compute, and save them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from megatron.checkpointing import (
    CheckpointInfo,
    find_checkpoint,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from megatron.checkpointing.deepspeed_files import engine_facts
from megatron.model.stages import logits_everywhere
from megatron.mpu.collectives import gather_from_model_parallel
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.setup import Parts, build_engine, build_model, build_parts, model_of
from tests.conversion.hf_models import VOCAB

# Of the checkpoint that ranks save.
STEP = 3


@dataclass(frozen=True)
class Visit:
    """A run in one layout: ``model`` ranks share each weight, in ``pipe`` stages (0: no pipeline).

    Attributes:
        source: an imported checkpoint, with its configuration.
        save: where the ranks save it.
        data: copies of the model that read different samples.
        zero: stage of ZeRO.
    """

    source: Path
    save: Path
    model: int
    pipe: int
    data: int = 1
    zero: int = 0

    @property
    def ranks(self) -> int:
        return self.model * max(1, self.pipe) * self.data


def config_of(visit: Visit) -> dict[str, Any]:
    """What the import has written, and the little that a run needs beside it."""
    written = yaml.safe_load((visit.source / "model.yml").read_text())
    return {
        **written,
        "model_parallel_size": visit.model,
        "pipe_parallel_size": visit.pipe,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": visit.zero},
        "optimizer": {"type": "Adam", "params": {"lr": 0.001}},
        "distributed_backend": "gloo",
    }


def run_visits(
    world: World, visits: list[Visit], tokens: NDArray[np.int64]
) -> list[NDArray[np.float32]]:
    """The logits [b, s, v] of ``tokens`` [b, s] in each run, which then saves its checkpoint."""
    return [_run(world, visit, torch.from_numpy(tokens)) for visit in visits]


def _load(engine: Any, info: CheckpointInfo, args: NeoXArgs, parts: Parts) -> None:
    """Through DeepSpeed's loader where the files are those of such a run, by name where not."""
    assert info.manifest is not None
    written, now = info.manifest.engine, engine_facts(engine, parts.world.size)
    if written == now:
        load_checkpoint(engine, info, world=parts.world, load_optim=False)
        return
    load_weights(
        model_of(engine),
        info,
        model_rank=parts.groups.get_model_parallel_rank(),
        model_parallel_size=now.model_parallel_size,
        model=args.model,
        engine=engine,
        world=parts.world,
    )


def _run(world: World, visit: Visit, tokens: torch.Tensor) -> NDArray[np.float32]:
    args = NeoXArgs.from_dict(config_of(visit), world_size=world.size)
    parts = build_parts(args, world)
    engine = build_engine(args, parts, build_model(args, parts, partitioned=True))
    model = model_of(engine)
    info = find_checkpoint(visit.source, world=world)
    assert info is not None
    _load(engine, info, args, parts)
    engine.eval()
    with torch.no_grad():
        logits = gather_from_model_parallel(logits_everywhere(model, tokens), parts.groups)
    save_checkpoint(
        engine,
        save_dir=visit.save,
        step=STEP,
        state={"consumed_samples": 0, "vocab_size": parts.tokenizer.vocab_size},
        world=world,
        config_files=(),
        config_flat=args.flat(),
        layout={},
    )
    found: NDArray[np.float32] = logits[..., :VOCAB].numpy()
    return found
