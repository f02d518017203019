"""Protects the example of docs/cluster.md: its commands, as they stand, on two hosts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.docs.shell_blocks import commands_of
from tests.support.cluster import Cluster
from tests.support.cluster_runs import PATIENCE, folder_with_tokens, write_config
from tests.support.doors import ROOT

pytestmark = pytest.mark.cluster


def test_what_the_page_types_trains_on_two_hosts(cluster: Cluster) -> None:
    folder = folder_with_tokens(cluster, "example")
    write_config(folder / "my.yml", eval_iters=0)
    (folder / "deepy.py").symlink_to(ROOT / "deepy.py")
    (folder / "train.py").symlink_to(ROOT / "train.py")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said = []
    for command in commands_of("docs/cluster.md", ROOT):
        done = cluster.run(
            1, ["bash", "-c", command.text], cwd=folder, env={"PATH": path}, timeout=PATIENCE
        )
        assert done.status == 0, f"{command}\n{done.all}"
        said.append(done.out)
    assert len(said) == 3
    assert "doctor: 2 host(s), my.yml" in said[1]
    assert "; a run can start" in said[1]
    assert (folder / "checkpoints" / "latest").read_text() == "global_step6"


def test_the_keys_of_hosts_are_learnt_as_the_page_says(cluster: Cluster) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert "\nssh-keyscan node1 node2 >> ~/.ssh/known_hosts " in page
    known = cluster.shared / "known_hosts"
    strict = f"-o StrictHostKeyChecking=yes -o UserKnownHostsFile={known}"
    asked = " && ".join(f"ssh {strict} {host} hostname" for host in ("node1", "node2"))
    command = f"ssh-keyscan node1 node2 >> {known} && {asked}"
    done = cluster.run(1, ["bash", "-c", command], cwd=cluster.shared, timeout=30.0)
    assert done.out.splitlines()[-2:] == ["node1", "node2"], done.all
