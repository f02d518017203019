"""Protects that a `load` that raises or hangs is a line of the doctor's, and does not end or stop it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from megatron.doctor import probe
from megatron.doctor.needs import needs_of
from megatron.launch.load_facts import LoadFacts
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from tests.support.tiny import tiny_config


@pytest.mark.parametrize(
    ("hangs", "why"), [(False, "PermissionError: not yours"), (True, "no answer within 0 s")]
)
def test_it_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool, why: str
) -> None:
    released = threading.Event()

    def look(*_: object, **__: object) -> LoadFacts | None:
        if not hangs:
            raise PermissionError("not yours")
        released.wait(60)
        return None

    monkeypatch.setattr(probe, "load_facts", look)
    monkeypatch.setattr(probe, "_PATIENCE", 0.2)
    args = NeoXArgs.from_dict(tiny_config(tmp_path))
    needs = needs_of(args, hosts=1, ranks_per_host=1, has_devices=False)
    (found,) = probe._start(args, needs, World())
    released.set()
    assert (found.topic, found.level) == ("folders", "error")
    assert found.text == f"load {tmp_path}/checkpoints: {why}"
