"""A save that is killed, at every single point at which it touches the disk.

The kill is an exception that nothing catches, raised in place of the k-th call that changes the
disk; a file that is being flushed loses half of its bytes. For every k, what is found afterwards
must be whole and right, and the next save must succeed and leave no rubbish.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from megatron.checkpointing import find_checkpoint, save_checkpoint
from megatron.checkpointing.folders import step_folders
from megatron.runtime.world import World

WATCHED = ("rename", "replace", "fsync", "unlink", "rmdir", "mkdir")


class Killed(BaseException):
    pass


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """These saves are many, and nobody pulls the plug."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class FakeEngine:
    """As much of DeepSpeed's engine as a save needs: it hands one state to the writer."""

    dp_world_size = mp_world_size = 1
    save_zero_checkpoint = False
    save_non_zero_checkpoint = True
    pipeline_parallelism = False

    def __init__(self) -> None:
        self.checkpoint_engine: Any = object()

    def zero_optimization_stage(self) -> int:
        return 0

    def use_node_local_storage(self) -> bool:
        return False

    def bfloat16_enabled(self) -> bool:
        return False

    def fp16_enabled(self) -> bool:
        return False

    def save_checkpoint(
        self, save_dir: str, tag: str, client_state: Any, save_latest: bool
    ) -> None:
        assert not save_latest
        path = os.path.join(save_dir, tag, "mp_rank_00_model_states.pt")
        self.checkpoint_engine.save({"module": {}, **client_state}, path)


def save(root: Path, step: int, mark: int, keep_last: int | None = None) -> None:
    save_checkpoint(
        FakeEngine(),
        save_dir=root,
        step=step,
        state={"mark": mark},
        world=World(),
        config_files=(),
        config_flat={"mark": mark},
        layout={},
        keep_last=keep_last,
    )


@contextmanager
def killed_at(kill: int) -> Iterator[list[str]]:
    """Raise :class:`Killed` in place of the ``kill``-th call that changes the disk."""
    calls: list[str] = []

    def watch(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) <= kill:
                return real(*args, **kwargs)
            if len(calls) > kill + 1:
                raise AssertionError(f"{name} was called by a dead process")
            if name == "fsync" and stat.S_ISREG(os.fstat(args[0]).st_mode):
                os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
            raise Killed

        return call

    with ExitStack() as stack:
        for name in WATCHED:
            stack.enter_context(mock.patch.object(os, name, watch(name, getattr(os, name))))
        yield calls


def first_save(root: Path) -> None:
    save(root, 20, mark=2)


def after_another(root: Path) -> None:
    save(root, 20, mark=2, keep_last=1)


def same_step_again(root: Path) -> None:
    save(root, 10, mark=2)


@pytest.mark.parametrize(
    ("action", "earlier", "may_find"),
    [
        (first_save, (), {None, (20, 2)}),
        (after_another, (10, 5), {(10, 1), (20, 2)}),
        (same_step_again, (10,), {(10, 1), (10, 2)}),
    ],
)
def test_a_kill_at_any_point_leaves_a_whole_checkpoint(
    tmp_path: Path,
    action: Callable[[Path], None],
    earlier: tuple[int, ...],
    may_find: set[tuple[int, int] | None],
) -> None:
    found = []
    for kill in itertools.count():
        root = tmp_path / str(kill)
        for step in reversed(earlier):
            save(root, step, mark=1)
        survived = False
        with killed_at(kill) as calls:
            try:
                action(root)
                survived = True
            except Killed:
                pass
        info = find_checkpoint(root)
        found.append((info.step, info.state["mark"]) if info else None)
        assert found[-1] in may_find, calls
        save(root, 30, mark=3)
        assert find_checkpoint(root).state == {"mark": 3}
        assert all(not name.startswith(".") for name in os.listdir(root)), calls
        assert all(find_checkpoint(root, step) for step in step_folders(root))
        if survived:
            assert len(calls) == kill
            break
    # Both ends were seen, and the new checkpoint came and never went again.
    assert set(found) == may_find
    assert sorted(found, key=lambda f: f is not None and f[1] == 2) == found
    assert len(found) > 15
