"""Processes that must not outlive the one that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal

# A launcher sets it to its own process id for the ranks that it starts.
LAUNCHER_PID_VARIABLE = "NEOX_LAUNCHER_PID"

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(how: signal.Signals) -> None:
    """Have the kernel send ``how`` to this process when its parent dies, even by SIGKILL.

    Only Linux can do so; elsewhere this does nothing.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, how)


def end_with_launcher() -> None:
    """Have this rank stop politely (SIGTERM: it saves) when its launcher dies.

    A launcher passes signals on, but nothing can catch SIGKILL: its ranks would train on with nobody
    to stop them. Only where the launcher has said who it is: a rank that a shell started must survive
    that shell.
    """
    launcher = os.environ.get(LAUNCHER_PID_VARIABLE)
    if launcher == str(os.getppid()):
        end_with_parent(signal.SIGTERM)
        if launcher != str(os.getppid()):  # it died in between
            os.kill(os.getpid(), signal.SIGTERM)
