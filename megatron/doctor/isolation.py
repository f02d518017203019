"""A check that raises or hangs becomes a fact about its host, and the doctor goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

FAILED = "failed"


def isolated(look: Callable[[], Any], patience: float) -> Any:
    """What ``look`` returns, or ``{"failed": why}`` if it raises or takes more than ``patience`` seconds.

    A look that hangs, as one at a dead network file system does, is left behind in its thread.
    """
    box: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        try:
            box.put(look())
        except BaseException as error:  # noqa: BLE001 - it is reported
            box.put({FAILED: f"{type(error).__name__}: {error}".strip()})

    threading.Thread(target=run, daemon=True).start()
    try:
        return box.get(timeout=patience)
    except queue.Empty:
        return {FAILED: f"no answer within {patience:.0f} s"}


def failure_of(facts: Any) -> str | None:
    """Why there are no facts; None where there are."""
    return facts.get(FAILED) if isinstance(facts, Mapping) else None
