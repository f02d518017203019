"""The variables that ranks on other hosts get from the place of the start.

Through a shell on another host a process finds little of the environment that its user has set up.
Carried are the variables that change what torch, DeepSpeed and the libraries below them do; what is the
host's own (``HOSTNAME``, ``TMPDIR``, the session's variables) is not. Values never stand in an argument
of a command, where other users of a host could read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from megatron.errors import LaunchError

# docs/cluster.md lists them; a test compares.
CARRIED: Final = (
    *("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "PYTHON*", "VIRTUAL_ENV", "CONDA_*"),
    *("NCCL_*", "GLOO_*", "UCX_*", "FI_*", "TORCH*", "PYTORCH_*", "TRITON_*", "CUDA_HOME"),
    *("CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUBLAS_*"),
    *("OMP_*", "MKL_*", "KMP_*", "MV2_*", "I_MPI_*", "DS_*", "DEEPSPEED_*", "NEOX_*", "MEGATRON_*"),
    *("HF_*", "TOKENIZERS_PARALLELISM", "WANDB_*", "COMET_*", "MLFLOW*", "LANG", "LC_*"),
)
# These say what a process is, and belong to one host or one process.
_NOT_CARRIED: Final = ("NEOX_LAUNCHER_PID", "TORCHELASTIC_*")
# DeepSpeed's: a file of NAME=VALUE lines, found in these folders.
ENV_FILE_VARIABLE: Final = "DS_ENV_FILE"
_USUAL_ENV_FILE: Final = ".deepspeed_env"


def carried_variables(
    env: Mapping[str, str], launch_env: Sequence[str] | None, home: Path, here: Path
) -> dict[str, str]:
    """The variables of ``env`` to carry, those of DeepSpeed's file over them.

    Args:
        launch_env: more names, of the configuration.
        home, here: folders in which ``.deepspeed_env`` may lie.

    Raises:
        LaunchError: a name in ``launch_env`` is not set, or a file is wrong.
    """
    for name in launch_env or ():
        if "*" not in name and name not in env:
            raise LaunchError(
                f"launch_env: {name} is not set here\n  to do: set it before the start, or take it out"
            )
    patterns = (*CARRIED, *(launch_env or ()))
    found = {
        name: value
        for name, value in env.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
        and not any(fnmatchcase(name, pattern) for pattern in _NOT_CARRIED)
    }
    named = env.get(ENV_FILE_VARIABLE)
    candidates = [Path(named)] if named else []
    candidates += [folder / (named or _USUAL_ENV_FILE) for folder in (here, home)]
    for path in candidates:
        if path.is_file():
            return found | read_env_file(path)
    if named:
        raise LaunchError(f"environment: {ENV_FILE_VARIABLE}={named}: no such file")
    return found


def read_env_file(path: Path) -> dict[str, str]:
    """The ``NAME=VALUE`` lines of a file; empty lines and ``#`` lines are skipped.

    Raises:
        LaunchError: a line is none, or the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise LaunchError(f"{path}: cannot be read: {reason}") from None
    found = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.removeprefix("export ").partition("=")
        if not equals or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name.strip()) is None:
            raise LaunchError(f"{path}:{number}: expected NAME=VALUE, found {name.strip()!r}")
        found[name.strip()] = value.strip()
    return found
