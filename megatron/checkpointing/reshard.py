"""Turn a checkpoint of any layout into the layout-free form, which every layout loads.

It holds one file for each weight of the whole model and for each of its Adam moments, and all that a run
needs to go on: step, samples, data, learning-rate schedule, loss scale. The original stays as it is.

example:
  python tools/ckpts/reshard.py --load checkpoints --save checkpoints-whole
  ./deepy.py train.py my.yml --set load=checkpoints-whole

A run can also load another layout's checkpoint directly, with reshape_on_load: true. This form is for a
checkpoint that will be loaded often, moved to another cluster or kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from megatron import logging as neox_logging
from megatron.checkpointing.find import find_checkpoint
from megatron.checkpointing.folders import CONFIG_FOLDER
from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.manifest import Manifest
from megatron.checkpointing.publishing import (
    Place,
    clean_up,
    finish,
    prepare,
    publish,
    time_now,
    versions,
)
from megatron.checkpointing.same_model import model_of
from megatron.checkpointing.save_folder import claimed_save_folder
from megatron.checkpointing.together import describe
from megatron.checkpointing.universal import ParameterStore, WholeModel
from megatron.checkpointing.universal_files import bytes_of, open_store, write_parameter
from megatron.checkpointing.universal_pieces import Part, PartReader, whole_shapes
from megatron.errors import CheckpointError
from megatron.neox_arguments.sections import ModelArgs
from megatron.runtime.durable import sync_folder, write_file
from megatron.runtime.world import World


def main(argv: Sequence[str] | None = None) -> None:
    """The command line of ``tools/ckpts/reshard.py``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--load", required=True, metavar="FOLDER", help="a run's checkpoints")
    parser.add_argument("--save", required=True, metavar="FOLDER", help="where the new form goes")
    parser.add_argument(
        "--iteration", type=int, metavar="N", help="step of the checkpoint; default: the latest"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the new form of that step that is in --save",
    )
    parsed = parser.parse_args(argv)
    neox_logging.configure(rank=0)
    report = reshard(parsed.load, parsed.save, parsed.iteration, overwrite=parsed.overwrite)
    sys.stdout.write(f"{report.text()}\n")


@dataclass(frozen=True)
class Report:
    """What was done.

    Attributes:
        source, target: the folders of the checkpoint and of its new form.
        manifest: of the new form.
        written: bytes of tensor files.
        seconds: how long it took.
    """

    source: Path
    target: Path
    manifest: Manifest
    written: int
    seconds: float

    def text(self) -> str:
        """For people, a fact a line."""
        whole = self.manifest.whole
        assert whole is not None
        numbers = bytes_of(whole) // 4 // len(whole.states)
        engine = self.manifest.engine
        layout = {
            "pipeline": max(1, engine.pipe_parallel_size),
            "model": engine.model_parallel_size,
            "data": engine.data_parallel_size,
        }
        ranks = " × ".join(f"{name} {size}" for name, size in layout.items())
        states = ", ".join(("values", *whole.states[1:]))
        return (
            f"read   {self.source}: {ranks}, ZeRO stage {engine.zero_stage}, {engine.precision}\n"
            f"wrote  {self.target}: {len(whole.parameters)} parameters of {numbers:,} numbers, "
            f"{states} in fp32; {self.written / 2**20:,.1f} MiB in {self.seconds:.1f} s\n"
            f"to do  load: {self.target.parent}"
        )


def reshard(
    load: str | Path, save: str | Path, iteration: int | None = None, *, overwrite: bool = False
) -> Report:
    """Write the layout-free form of a checkpoint under ``<save>/global_step<N>``.

    It is there whole or not at all, and ``<save>/latest`` names it.

    Args:
        load: the folder of a run's checkpoints, as ``load:`` in a configuration.
        save: another folder, made when missing.
        iteration: the step to take instead of the latest.
        overwrite: replace the layout-free form of that step that is there.

    Raises:
        CheckpointError: there is no whole checkpoint, the step's place is taken, or the new form cannot be
            written.
    """
    started = time.perf_counter()
    root = Path(save).absolute()
    if root.resolve() == Path(load).resolve():
        raise CheckpointError(
            f"--save {save} is the folder that --load names: the new form would take the checkpoint's "
            "place\n  to do: choose another folder"
        )
    info = _find(load, iteration)
    assert info.manifest is not None
    model = model_of(info)
    store = open_store(info)
    whole = WholeModel(whole_shapes(store, model), store.states, store.engine)
    with claimed_save_folder(root, world=World()):
        place = Place(root, info.step)
        _require_free(place, overwrite=overwrite)
        try:
            _check_room(root, whole)
            prepare(place)
            tensors = _write_tensors(place.unfinished, store, model, whole)
            configs = _copy_configs(info.path, place.unfinished)
            manifest = replace(
                info.manifest,
                whole=whole,
                node_local=False,
                disks=[dict(sorted((tensors | configs).items()))],
                versions=versions(),
                created=time_now(),
            )
            finish(place, manifest, manifest.files_of(0))
            publish(place)
        except (OSError, CheckpointError) as error:
            text = f"{info.path} could not be resharded into {root}\n  found: {describe(error)}"
            raise CheckpointError(text + clean_up(place)) from error
    seconds = time.perf_counter() - started
    return Report(info.path, place.final, manifest, sum(tensors.values()), seconds)


def _require_free(place: Place, *, overwrite: bool) -> None:
    """Insist that no checkpoint is lost: the place is empty, or holds a new form that may be replaced.

    Raises:
        CheckpointError: something else is there, or it may not be replaced.
    """
    if not os.path.lexists(place.final):
        return
    there = find_checkpoint(place.root, place.step)
    if there is None or there.manifest is None or there.manifest.whole is None:
        raise CheckpointError(
            f"--save: {place.final} is there and is no layout-free checkpoint\n"
            "  to do: choose another folder"
        )
    if not overwrite:
        raise CheckpointError(
            f"--save: {place.final} is there\n"
            "  to do: choose another folder, or give --overwrite to replace it"
        )


def _find(load: str | Path, iteration: int | None) -> CheckpointInfo:
    """The checkpoint to turn, with the files of all its ranks."""
    info = find_checkpoint(load, iteration, continues=True)
    if info is None:
        raise CheckpointError(f"--load {load} holds no checkpoint")
    manifest = info.manifest
    assert manifest is not None  # foreign ones were not asked for
    if manifest.whole is not None:
        raise CheckpointError(
            f"{info.path} is layout-free already\n  to do: load it as it is, with load: {load}"
        )
    return info


def _check_room(root: Path, whole: WholeModel) -> None:
    root.mkdir(parents=True, exist_ok=True)
    needed, free = bytes_of(whole), shutil.disk_usage(root).free
    if needed > free:
        raise CheckpointError(
            f"the new form takes {needed / 2**20:,.0f} MiB, {root} has {free / 2**20:,.0f} MiB left"
        )


def _write_tensors(
    folder: Path, store: ParameterStore, model: ModelArgs, whole: WholeModel
) -> dict[str, int]:
    """Write every state of every parameter, one in memory at a time. Returns path inside it → bytes."""
    reader = PartReader(store, model)
    sizes = {}
    for name, shape in whole.parameters.items():
        for state in whole.states:
            file, size = write_parameter(folder, state, name, reader.read(state, Part(name, shape)))
            sizes[file] = size
        sync_folder((folder / file).parent)
    sync_folder((folder / file).parent.parent)
    return sizes


def _copy_configs(source: Path, target: Path) -> dict[str, int]:
    """Copy the configuration files. Returns path inside the folder → bytes."""
    (target / CONFIG_FOLDER).mkdir()
    sizes = {
        f"{CONFIG_FOLDER}/{path.name}": write_file(
            target / CONFIG_FOLDER / path.name, path.read_bytes()
        )
        for path in sorted((source / CONFIG_FOLDER).iterdir())
    }
    sync_folder(target / CONFIG_FOLDER)
    return sizes
