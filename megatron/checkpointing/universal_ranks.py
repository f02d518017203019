"""The files that the ranks of a run wrote, as a store of parameters.

DeepSpeed writes for each model-parallel rank M (numbered through the stages of a pipeline) a file
``mp_rank_<M>_model_states.pt``, and where ZeRO is on for each of its data-parallel ranks D a file
``zero_pp_rank_<D>_mp_rank_<M>_optim_states.pt`` with the part of the optimizer's state that this rank
kept. Under ZeRO 3 the former are ``zero_pp_rank_<D>_mp_rank_<M>_model_states.pt``, and hold no weights. How
parameters lie in them :mod:`~megatron.checkpointing.universal_optimizers` knows.

The files hold a few of DeepSpeed's objects. They are read into stand-ins without methods, so nothing that
a file says can run code, and DeepSpeed need not be there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.manifest import EngineFacts
from megatron.checkpointing.tensor_files import read_safely, read_shard, weight_shards
from megatron.checkpointing.universal import VALUE, EngineState, Shape
from megatron.checkpointing.universal_optimizers import (
    Content,
    Fragment,
    LayerPartitions,
    PlainOptimizer,
    RankState,
    WeightsOnly,
    ZeroPartitions,
)
from megatron.errors import CheckpointError

_FACTS_FILE = re.compile(r"(?:(?:\w+_)?zero_pp_rank_0_)?mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER_FILE = re.compile(r"(?:\w+_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")


# The embedding's table, of which a pipeline with a tied head has a copy in its last stage.
_TABLE = "sequential.0.word_embeddings.weight"


class _LossScaler:
    """Stands in for DeepSpeed's scalers: has their fields, and nothing else."""


def _stage(number: int) -> int:
    """Stands in for DeepSpeed's enumeration of ZeRO stages."""
    return int(number)


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Within the block, DeepSpeed's objects in a file are read as those of this module."""
    scalers = ("LossScaler", "DynamicLossScaler")
    stand_ins: list[Any] = [
        (Fragment, "deepspeed.utils.tensor_fragment.fragment_address"),
        (_stage, "deepspeed.runtime.zero.config.ZeroStageEnum"),
        *((_LossScaler, f"deepspeed.runtime.fp16.loss_scaler.{name}") for name in scalers),
    ]
    with torch.serialization.safe_globals(stand_ins):
        yield


class RankFiles:
    """The whole state of a run, from the files of all its ranks.

    Args:
        info: the checkpoint; a foreign one, without a manifest of ours, gives its weights.
        with_optimizer: read the optimizer's state; without it, the weights that computed are all there
            is, in the precision in which they did.

    Attributes:
        size, shapes, states, engine, vocab_size: see
            :class:`~megatron.checkpointing.universal.ParameterStore`.

    Raises:
        CheckpointError: a file is missing or damaged, or lacks what it should hold.
    """

    def __init__(self, info: CheckpointInfo, *, with_optimizer: bool = True) -> None:
        manifest = info.manifest
        with _stand_ins():
            if manifest is not None and manifest.has_optimizer and with_optimizer:
                found = _optimizers(info.path, manifest.engine)
            else:
                found = _weights(info.path, with_facts=manifest is not None)
        self.size = manifest.engine.model_parallel_size if manifest is not None else len(found)
        self._ranks = _by_parameter(info.path, found, self.size)
        self.shapes: dict[str, Shape] = {
            name: ranks[0].shapes[name] for name, ranks in self._ranks.items()
        }
        first = found[min(found)]
        self.states = (VALUE, *first.moments)
        self.engine = _engine_state(info.path, first, found)
        self.vocab_size: int | None = info.state.get("vocab_size")

    def read(self, state: str, name: str, rank: int) -> Tensor:
        return self._ranks[name][rank].read(state, name)


def _optimizers(folder: Path, facts: EngineFacts) -> dict[int, RankState]:
    """What the files of each model-parallel rank hold, by its number through all stages."""
    files = _model_files(folder)
    contents = {number: read_safely(path) for number, path in files.items()}
    expected = max(1, facts.pipe_parallel_size) * facts.model_parallel_size
    if len(contents) != expected:
        raise CheckpointError(
            f"{folder} holds the files of {len(contents)} model-parallel ranks\n"
            f"  expected: {expected}, as its manifest says"
        )
    if facts.zero_stage == 0:
        return _plain_optimizers(folder, files, contents, facts.model_parallel_size)
    kind = LayerPartitions if facts.zero_stage == 3 else ZeroPartitions
    found: dict[int, RankState] = {}
    for number, content in contents.items():
        parts = _optimizer_files(folder, number, facts.data_parallel_size)
        try:
            found[number] = kind(parts, content)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{files[number]} and the {parts[0][0].name} that belong to it are not as DeepSpeed 0.19 "
                f"writes them for ZeRO {facts.zero_stage}\n  found: {error!r}"
            ) from error
    return found


def _plain_optimizers(
    folder: Path, files: Mapping[int, Path], contents: Mapping[int, Content], size: int
) -> dict[int, RankState]:
    """Without ZeRO: what the model-parallel ranks of all stages hold, ``size`` of them in each stage."""
    found: dict[int, RankState] = {}
    for model_rank in range(size):
        weights = read_shard(folder, model_rank)
        names, table = list(weights), [name for name in weights if name == _TABLE]
        for number in range(model_rank, len(files), size):
            optimizer = contents[number].get("optimizer")
            if not isinstance(optimizer, dict):
                raise CheckpointError(f"{files[number]} does not hold the optimizer's state")
            # Stages hold consecutive layers; how many parameters these have is known.
            count = sum(len(group["params"]) for group in optimizer["param_groups"])
            # A tied head in another stage computes with a copy of the embedding, its last parameter.
            mine = [*names[:count], *(table if count > len(names) else ())]
            names = names[count:]
            held = {name: weights[name] for name in mine}
            found[number] = PlainOptimizer(files[number], contents[number], held)
    return found


def _model_files(folder: Path) -> dict[int, Path]:
    found = {
        int(match[1]): folder / match[0]
        for match in map(_FACTS_FILE.fullmatch, sorted(entry.name for entry in folder.iterdir()))
        if match
    }
    missing = set(range(len(found) or 1)) - found.keys()
    if missing:
        raise CheckpointError(f"{folder}/mp_rank_{min(missing):02d}_model_states.pt is missing")
    return found


def _optimizer_files(folder: Path, rank: int, size: int) -> list[tuple[Path, dict[str, Any]]]:
    """What the data-parallel ranks of model-parallel ``rank`` kept, in their order, with its file."""
    names: dict[int, str] = {}
    for entry in folder.iterdir():
        match = _OPTIMIZER_FILE.fullmatch(entry.name)
        if match and int(match[2]) == rank:
            names[int(match[1])] = entry.name
    missing = [number for number in range(size) if number not in names]
    if missing or len(names) != size:
        raise CheckpointError(
            f"{folder}: zero_pp_rank_{(missing or [size])[0]}_mp_rank_{rank:02d}_optim_states.pt is "
            f"{'missing' if missing else 'one too many'}\n"
            f"  expected: the optimizer state of {size} data-parallel ranks, as its manifest says"
        )
    contents = []
    for number in range(size):
        path = folder / names[number]
        content = read_safely(path).get("optimizer_state_dict")
        if not isinstance(content, dict):
            raise CheckpointError(f"{path} holds no optimizer state")
        contents.append((path, content))
    return contents


def _weights(folder: Path, with_facts: bool) -> dict[int, RankState]:
    files = _model_files(folder) if with_facts else {}
    facts = {number: read_safely(path) for number, path in files.items()}
    return {
        shard: WeightsOnly(read_shard(folder, shard), facts.get(shard, {}))
        for shard in sorted(weight_shards(folder))
    }


def _by_parameter(
    folder: Path, found: Mapping[int, RankState], size: int
) -> dict[str, list[RankState]]:
    """The ``size`` model-parallel ranks that share each parameter, in their order.

    A tied embedding is in two stages of a pipeline: the first one's counts.
    """
    ranks: dict[str, list[RankState]] = {}
    for number in sorted(found):
        for name in found[number].shapes:
            sharing = ranks.setdefault(name, [])
            if len(sharing) < size:
                sharing.append(found[number])
    for name, sharing in ranks.items():
        if len(sharing) != size or len({state.shapes[name] for state in sharing}) != 1:
            raise CheckpointError(
                f"{folder}: its files do not belong together: {len(sharing)} of {size} model-parallel ranks "
                f"have {name}, of the shapes {[state.shapes[name] for state in sharing]}"
            )
    return ranks


def _engine_state(folder: Path, first: RankState, found: Mapping[int, RankState]) -> EngineState:
    steps = {step for state in found.values() for step in state.optimizer_steps}
    if len(steps) > 1:
        raise CheckpointError(
            f"{folder}: its files are of several steps: the optimizer's count of updates is "
            f"{', '.join(f'{step:g}' for step in sorted(steps))}"
        )
    return EngineState(
        optimizer_step=steps.pop() if steps else None,
        skipped_steps=int(first.facts.get("skipped_steps", 0)),
        global_samples=int(first.facts.get("global_samples", 0)),
        loss_scaler=first.loss_scaler,
    )
