"""Protects a run against its disk: what ``save`` on a full or a read-only one gets, for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.doors import Done
from tests.support.mounts import run_with_mounts

pytestmark = pytest.mark.ranks


def test_full_and_read_only_disks(tmp_path: Path) -> None:
    ends = run_with_mounts("tests.e2e.bad_disks", tmp_path)
    disks = {name: end.pop("disk") for name, end in ends.items()}
    runs = {name: Done(**end) for name, end in ends.items()}
    for name in ("full", "read-only", "read-only, for metrics too"):
        assert runs[name].status == 2, runs[name].all
        assert "Traceback" not in runs[name].err
        assert 0 < len(runs[name].err.splitlines()) <= 10

    assert "checkpoint of step 4 could not be saved" in runs["full"].err
    assert "No space left on device" in runs["full"].err
    assert "still whole: global_step2" in runs["full"].err
    assert disks["full"] == ["global_step2", "latest"]

    assert runs["room again"].status == 0, runs["room again"].all
    assert "resuming from" in runs["room again"].out
    assert "finished after step 4 of 4" in runs["room again"].out

    # Before the first step, not at the first save.
    for name in ("read-only", "read-only, for metrics too"):
        assert "Read-only file system" in runs[name].err
        assert "choose another" in runs[name].err
        assert "step 5/6" not in runs[name].out
        assert disks[name] == ["global_step2", "global_step4", "latest"]
    assert runs["read-only, but done"].status == 0, runs["read-only, but done"].all
