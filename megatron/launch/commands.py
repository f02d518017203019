"""The command lines by which MPI's launchers and Slurm's start the ranks: a process each, by themselves.

Variables go by name, their values in the launcher's own environment: an argument could be read by every
user of the host. The ranks find their numbers in what the launcher sets (:mod:`megatron.ranks`).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

from megatron.errors import LaunchError
from megatron.launch.hosts import ANY_HOST
from megatron.launch.plan import LaunchPlan, without_place

# What the version text of each one's mpirun has in it.
_SIGNS: Final = {
    "openmpi": ("Open MPI", "OpenRTE"),
    "mpich": ("HYDRA",),
    "mvapich": ("HYDRA", "mvapich"),
    "impi": ("Intel(R) MPI",),
}
_HYDRA: Final = ("mpich", "mvapich", "impi")
_LAST: Final = "NEOX_NOBODY_NEEDS_THIS"
# Ranks bind no cores: their threads would all share the core of their process.
_OWN_SETTINGS: Final = {
    "mvapich": {"MV2_ENABLE_AFFINITY": "0", "MV2_SUPPORT_DL": "1"},
    "impi": {"I_MPI_PIN": "0"},
}


def environment_of_launcher(plan: LaunchPlan, env: Mapping[str, str]) -> dict[str, str]:
    """All of the environment in which the launcher itself runs, ``env`` being this process's.

    Ranks on this host get all of it, those of Slurm on every host: to one that finds another's place in it,
    the launcher would have nothing to say.
    """
    found = {**without_place(env), **launcher_environment(plan)}
    if plan.launcher in _HYDRA:
        # With -genvlist, MPICH 4.0.2 keeps the last variable of its own environment from other hosts.
        found.pop(_LAST, None)
        found[_LAST] = "1"
    return found


def launcher_environment(plan: LaunchPlan) -> dict[str, str]:
    """The variables that the launcher hands on to the ranks."""
    own = _OWN_SETTINGS.get(plan.launcher, {})
    # Where Slurm is to choose the hosts, the ranks find out which is the first.
    place = {"MASTER_ADDR": plan.address} if plan.address else {}
    return {**own, **plan.env, **place, "MASTER_PORT": str(plan.port)}


def launcher_command(plan: LaunchPlan) -> list[str]:
    """The command for one of MPI's launchers or Slurm's."""
    names = sorted(launcher_environment(plan))
    if plan.launcher == "slurm":
        return [*_srun(plan), *plan.command]
    if plan.launcher == "openmpi":
        return [*_open_mpi(plan, names), *plan.command]
    return [*_hydra(plan, names), *plan.command]


def _open_mpi(plan: LaunchPlan, names: list[str]) -> list[str]:
    slots = ",".join(f"{share.host}:{share.ranks}" for share in plan.hosts)
    exports = [word for name in names for word in ("-x", name)]
    return [
        *("mpirun", "-n", str(plan.ranks), "--host", slots, "--map-by", "slot"),
        *("--bind-to", "none", *plan.launcher_args, *exports),
    ]


def _hydra(plan: LaunchPlan, names: list[str]) -> list[str]:
    """MPICH's process manager, which Intel MPI and MVAPICH have too."""
    hosts = ",".join(share.host for share in plan.hosts)
    return [
        *("mpirun", "-n", str(plan.ranks), "-ppn", str(plan.hosts[0].ranks)),
        *("-hosts", hosts, *plan.launcher_args, "-genvlist", ",".join(names)),
    ]


def _srun(plan: LaunchPlan) -> list[str]:
    named = [share.host for share in plan.hosts if share.host != ANY_HOST]
    chosen = [f"--nodelist={','.join(named)}"] if named else []
    return [
        *("srun", f"--nodes={len(plan.hosts)}", f"--ntasks={plan.ranks}"),
        # Ranks of a host follow each other: otherwise it would be as an outer srun's environment says.
        *(f"--ntasks-per-node={plan.hosts[0].ranks}", "--distribution=block", *chosen),
        *("--kill-on-bad-exit=1", "--export=ALL", *plan.slurm, *plan.launcher_args),
    ]


def check_launcher(launcher: str, env: Mapping[str, str] | None = None) -> None:
    """Insist that the launcher is installed here, and is the one that is meant.

    Raises:
        LaunchError: it is not.
    """
    program = {"slurm": "srun", "pdsh": "pdsh"}.get(launcher, "mpirun")
    path = shutil.which(program, path=None if env is None else env.get("PATH"))
    if path is None:
        raise LaunchError(
            f"launcher: {launcher}: {program} is not installed here (not in PATH)\n"
            "  to do: install it, load its module, or choose another launcher; torchrun needs none: see "
            "docs/cluster.md"
        )
    if launcher not in _SIGNS:
        return
    found = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    text = found.stdout + found.stderr
    if not any(sign.lower() in text.lower() for sign in _SIGNS[launcher]):
        first = next(iter(text.strip().splitlines()), "nothing")
        raise LaunchError(
            f"launcher: {launcher}: {path} is another MPI's\n  found: {first[:120]}\n"
            "  to do: set launcher to openmpi, mpich, impi or mvapich, or put the right mpirun first in PATH"
        )
