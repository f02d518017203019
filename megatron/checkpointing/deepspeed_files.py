"""DeepSpeed's part of a checkpoint: its shards, written so that no rank is left waiting.

Under ZeRO stage 3 the weights are written a layer at a time beside them (see
:mod:`megatron.checkpointing.layer_files`).

``engine.save_checkpoint`` writes in the middle of its own collectives: where a write fails, that
rank raises (or, for folders, carries on silently) while its peers wait in a barrier for ten
minutes. So for the length of one save a :class:`ShardWriter` stands in for the engine's writer: it
keeps the first error to itself until every collective is behind it, and flushes what it writes.

Facts of DeepSpeed 0.19: ``engine.checkpoint_engine`` writes and reads all files but the recovery
scripts, which ``engine._copy_recovery_script`` copies; ``engine.save_zero_checkpoint`` says whether
this rank writes a shard of the optimizer, ``engine.save_non_zero_checkpoint`` whether it writes weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from megatron.checkpointing.layer_files import holds_parts, write_layers, writes_for_its_node
from megatron.checkpointing.manifest import EngineFacts
from megatron.runtime.durable import new_file
from megatron.runtime.stock_deepspeed import Engine, deepspeed

_RECOVERY_SCRIPTS = ("zero_to_fp32.py", "zero_to_torch.py")


def engine_facts(engine: Engine, world_size: int) -> EngineFacts:
    """What the files of ``engine`` depend on."""
    pipe = int(engine.module.num_stages) if engine.pipeline_parallelism else 0
    half = "bfloat16" if engine.bfloat16_enabled() else "fp16"
    is_half = engine.bfloat16_enabled() or engine.fp16_enabled()
    return EngineFacts(
        world_size=world_size,
        data_parallel_size=int(engine.dp_world_size),
        # To DeepSpeed all ranks of one pipeline are model-parallel.
        model_parallel_size=int(engine.mp_world_size) // max(1, pipe),
        zero_stage=int(engine.zero_optimization_stage()),
        precision=half if is_half else "fp32",
        pipe_parallel_size=pipe,
    )


def model_under(engine: Engine) -> nn.Module:
    """The module whose parameters are named as in a plain run; in a pipeline, this rank's stage."""
    module: nn.Module = engine.module.stage if engine.pipeline_parallelism else engine.module
    return module


class ShardWriter:
    """Writes DeepSpeed's files into one folder; errors wait in :attr:`error`.

    Everything that is not about writing is left to the engine's own checkpoint engine.

    Attributes:
        files: what was written whole: file name → bytes.
        error: the first write that failed. Later ones are not tried.
    """

    def __init__(self, inner: Any, folder: Path, *, with_optimizer: bool) -> None:
        self._inner = inner
        self._folder = folder
        self._with_optimizer = with_optimizer
        self._zipped = bool(getattr(inner, "zipfile_serialization", True))
        self.files: dict[str, int] = {}
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing to do: the folder is there, or this save would have stopped before."""

    def create(self, info: object) -> None:
        """Nothing to do before the first file."""

    def commit(self, info: object) -> bool:
        """Nothing to do after the last one: each is on the disk when :meth:`save` returns."""
        return True

    def is_decoupled(self) -> bool:
        return False

    def save(self, state_dict: Mapping[str, Any], path: str) -> None:
        """Write one file of tensors, as DeepSpeed names it."""
        if not self._with_optimizer and state_dict.get("optimizer") is not None:
            state_dict = {**state_dict, "optimizer": None}
        self._write(
            Path(path).name,
            lambda file: torch.save(state_dict, file, _use_new_zipfile_serialization=self._zipped),
        )

    def copy_recovery_scripts(self, source_folder: Path) -> None:
        """Put DeepSpeed's scripts that turn shards into plain weights beside the shards."""
        for name in _RECOVERY_SCRIPTS:
            self._write(name, partial(_copy, source_folder / name))

    def _write(self, name: str, fill: Callable[[BinaryIO], object]) -> None:
        if self.error is not None:
            return
        path = self._folder / name
        try:
            with new_file(path) as file:
                fill(file)
                file.flush()
                size = file.tell()
        except OSError as error:
            self.error = error
        else:
            self.files[name] = size


def _copy(source: Path, file: BinaryIO) -> None:
    file.write(source.read_bytes())


def write_shards(
    engine: Engine, folder: Path, *, client_state: dict[str, Any], with_optimizer: bool
) -> dict[str, int]:
    """Let ``engine`` write this rank's files into ``folder``, which exists. All ranks call this.

    Returns:
        The files that this rank wrote: name → bytes.

    Raises:
        OSError: after all collectives, when this rank could not write.
    """
    writer = ShardWriter(engine.checkpoint_engine, folder, with_optimizer=with_optimizer)
    with _writing_through(writer, engine, with_optimizer):
        engine.save_checkpoint(
            str(folder.parent), tag=folder.name, client_state=client_state, save_latest=False
        )
        if holds_parts(engine):
            write_layers(engine, writer.save)
    if writer.error is not None:
        raise writer.error
    return writer.files


@contextmanager
def _writing_through(writer: ShardWriter, engine: Engine, with_optimizer: bool) -> Iterator[None]:
    inner, saves_zero = engine.checkpoint_engine, engine.save_zero_checkpoint
    saves_weights = engine.save_non_zero_checkpoint
    scripts = Path(inspect.getfile(deepspeed)).parent / "utils"
    engine.checkpoint_engine = writer
    engine.save_zero_checkpoint = saves_zero and with_optimizer
    if engine.use_node_local_storage():
        # DeepSpeed would let the first process of a node write alone.
        engine.save_non_zero_checkpoint = writes_for_its_node(engine)
    engine._copy_recovery_script = lambda _save_dir: writer.copy_recovery_scripts(scripts)
    try:
        yield
    finally:
        engine.checkpoint_engine, engine.save_zero_checkpoint = inner, saves_zero
        engine.save_non_zero_checkpoint = saves_weights
        del engine._copy_recovery_script  # the class's own shows through again
