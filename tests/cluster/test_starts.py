"""Protects that a run on two hosts is the run that it is on one, however it was started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_runs import folder_with_tokens, succeed, torchrun, write_config
from tests.support.doors import doors
from tests.support.tiny import series

SERIES = ("train/lm_loss", "train/grad_norm", "train/learning_rate", "validation/lm_loss")


@pytest.fixture(scope="session")
def one_host(bench: Cluster) -> Path:
    """The folder of the run that all others are compared with: four ranks on this machine itself."""
    folder = folder_with_tokens(bench, "one-host")
    write_config(folder / "run.yml")
    for done in doors(4, "train.py", "--config-file", "run.yml", folder=folder):
        assert done.status == 0, done.all
    return folder


def test_torchrun(cluster: Cluster, one_host: Path) -> None:
    folder = folder_with_tokens(cluster, "torchrun")
    write_config(folder / "run.yml")
    succeed(torchrun(cluster, "--config-file", "run.yml", cwd=folder))
    for name in SERIES:
        expected = series(one_host / "checkpoints", name)
        assert len(expected) > 0
        assert series(folder / "checkpoints", name) == expected, name
    assert cluster.left_after(10) == {}
