"""What people type on the first host to start a run on two, and what must be true of it however they do."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cluster import MPI_PACKAGES, MPICH_PACKAGES, Cluster, reason_not_to_run
from tests.support.cluster_host import Job
from tests.support.cluster_runs import folder_with_tokens, write_config
from tests.support.doors import ROOT
from tests.support.tiny import series
from tests.support.watching import again_and_again, words_of

DEEPY: Final = ROOT / "deepy.py"
SERIES: Final = ("train/lm_loss", "train/grad_norm", "train/learning_rate", "validation/lm_loss")
# Something of the user's own that all ranks need and nobody else may see.
SECRET: Final = {"OUR_PASSWORD": "geheim-4711"}
_MPI: Final = {
    "openmpi": ("mpirun.openmpi", MPI_PACKAGES),
    "mpich": ("mpirun.mpich", MPICH_PACKAGES),
}
_VALUE: Final = SECRET["OUR_PASSWORD"].encode()


def folder_for_run(cluster: Cluster, name: str, **changes: Any) -> Path:
    """A new folder that both hosts see, with tokens, ``run.yml`` and a hostfile ``hosts`` of 2 + 2 slots."""
    folder = folder_with_tokens(cluster, name)
    write_hostfile(folder)
    write_config(folder / "run.yml", launch_env=list(SECRET), **changes)
    return folder


def write_hostfile(folder: Path) -> None:
    """The file ``hosts``, of 2 + 2 slots."""
    (folder / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")


def deepy(
    cluster: Cluster,
    folder: Path,
    *launcher: str,
    script: str = "train.py",
    config: str = "run.yml",
    own: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Job:
    """``./deepy.py [launcher options] train.py run.yml [own options]`` on the first host."""
    command = [sys.executable, DEEPY, *launcher, script, config, *own]
    return cluster.on(1, command, cwd=folder, env=SECRET | dict(env or {}))


def mpi_of(cluster: Cluster, launcher: str) -> dict[str, str]:
    """Variables with which ``mpirun`` is that of this launcher, and may be started by root.

    Several MPIs may be installed; Debian has each one's own under a longer name.
    """
    program, packages = _MPI[launcher]
    reason = reason_not_to_run(packages)
    if reason:
        pytest.skip(reason)
    folder = cluster.shared / program
    folder.mkdir(exist_ok=True)
    # MPICH's looks for its helper where it was called.
    for name, target in (("mpirun", program), ("hydra_pmi_proxy", "hydra_pmi_proxy")):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(shutil.which(target) or "/missing")
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {"PATH": f"{folder}:{sys.prefix}/bin:/usr/bin:/bin"} | as_root


def is_as_on_one_host(folder: Path, one_host: Path) -> None:
    """Insist on the same numbers, to the last bit, as the run on one host has written down."""
    for name in SERIES:
        expected = series(one_host / "checkpoints", name)
        assert len(expected) > 0
        assert series(folder / "checkpoints", name) == expected, name


@dataclass
class Seen:
    """What was seen on both hosts while a run was started and ran.

    Attributes:
        told: the ranks that had the secret in their environment, as ``node1:0``.
        shown: programs that had it in an argument.
        modes: permissions of the files that the start has left for agents, by host.
    """

    told: set[str] = field(default_factory=set)
    shown: set[str] = field(default_factory=set)
    modes: dict[str, set[str]] = field(default_factory=dict)


@contextmanager
def watched(cluster: Cluster) -> Iterator[Seen]:
    """Look at all processes of both hosts, and for the agents' files, again and again during the block."""
    seen = Seen()

    def look() -> None:
        for number, host in cluster.hosts.items():
            for pid in host.processes():
                _look_at(pid, f"node{number}", seen)
            for path in host.path("/tmp").glob("deepy-*/job.json"):
                _note_mode(path, seen.modes.setdefault(f"node{number}", set()))

    with again_and_again(look, 0.04):
        yield seen


def _look_at(pid: int, host: str, seen: Seen) -> None:
    words, variables = words_of(pid, "cmdline"), words_of(pid, "environ")
    if words is None or variables is None:
        return
    if any(_VALUE in word for word in words):
        seen.shown.add(b" ".join(words).decode(errors="replace"))
    if not any(_VALUE in variable for variable in variables):
        return
    for variable in variables:
        if variable.startswith(
            (b"RANK=", b"SLURM_PROCID=", b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")
        ):
            seen.told.add(f"{host}:{variable.rpartition(b'=')[2].decode()}")


def _note_mode(path: Path, modes: set[str]) -> None:
    try:
        folder, file = os.stat(path.parent), os.stat(path)
    except OSError:  # read, and removed
        return
    modes.add(f"{folder.st_mode & 0o777:o} {file.st_mode & 0o777:o}")
