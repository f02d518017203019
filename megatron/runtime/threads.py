"""How the threads of a process wait for each other; to be said before torch is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_VARIABLE: Final = "OMP_WAIT_POLICY"


def wait_policy(env: Mapping[str, str]) -> dict[str, str]:
    """The variable to set beside ``env``; nothing where the user has chosen.

    Threads that spin while they wait for each other make a step several times as long as soon as another
    program wants a core.
    """
    return {} if _VARIABLE in env else {_VARIABLE: "PASSIVE"}


def wait_passively() -> None:
    """Let this process's threads sleep while they wait. OpenMP reads the variable once, as it is loaded."""
    os.environ.update(wait_policy(os.environ))
