"""What is to be said in the environment before torch is loaded: its libraries read it once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_WAIT: Final = "OMP_WAIT_POLICY"
# How much torch's C++ says on standard error.
LOG_LEVEL: Final = "TORCH_CPP_LOG_LEVEL"
# Who has set one of these looks for what torch's C++ says.
_SEARCH: Final = (LOG_LEVEL, "TORCH_DISTRIBUTED_DEBUG", "TORCH_SHOW_CPP_STACKTRACES")


def variables_for_torch(env: Mapping[str, str]) -> dict[str, str]:
    """The variables to set beside ``env``, where the user has chosen nothing.

    Threads that spin while they wait for each other make a step several times as long as soon as another
    program wants a core. Of the warnings of torch's C++ a start on hosts without names for their
    addresses gets dozens, and each end of another rank one with a page of stack frames; its errors stay.
    """
    found = {} if _WAIT in env else {_WAIT: "PASSIVE"}
    if not any(name in env for name in _SEARCH):
        found[LOG_LEVEL] = "ERROR"
    return found


def prepare_for_torch() -> None:
    """Set them for this process."""
    os.environ.update(variables_for_torch(os.environ))
