"""Protects that the quickstart's text and configuration train on two hosts as they do on one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_runs import PATIENCE
from tests.support.cluster_starts import deepy, is_as_on_one_host, write_hostfile
from tests.support.doors import ROOT, doors
from tools.quickstart import quickstart

pytestmark = pytest.mark.cluster

# Its first steps, each of which is written down.
FEW = {"train_iters": 12, "log_interval": 1, "eval_interval": 6, "eval_iters": 2}
SET = [word for key, value in FEW.items() for word in ("--set", f"{key}={value}")]


def prepare(folder: Path) -> None:
    """What `make quickstart` has made when it begins to train."""
    (folder / quickstart.RUN).mkdir(parents=True)
    for name in ("configs", "tools"):
        (folder / name).symlink_to(ROOT / name)
    for script, *arguments in (quickstart.CHOOSE, quickstart.TOKENIZE):
        command = [sys.executable, ROOT / script, *arguments]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


def test_it_trains_alike(cluster: Cluster) -> None:
    one, two = (cluster.shared / f"quickstart-{hosts}" for hosts in ("one", "two"))
    prepare(one)
    for done in doors(4, "train.py", str(quickstart.CONFIG), *SET, folder=one):
        assert done.status == 0, done.all
    prepare(two)
    write_hostfile(two)
    config = str(quickstart.CONFIG)
    done = deepy(cluster, two, "--hostfile", "hosts", config=config, own=SET).wait(PATIENCE)
    assert done.status == 0, done.all
    is_as_on_one_host(two / quickstart.RUN, one / quickstart.RUN)
    assert cluster.left_after(10) == {}
