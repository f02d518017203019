"""Which hosts take part, and with which devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron.errors import LaunchError
from megatron.launch.hosts import ANY_HOST, Share, find_hostfile, hosts_of_hostfile, hosts_of_slurm
from megatron.neox_arguments.sections import LaunchArgs


def shares(tmp_path: Path, **keys: Any) -> list[tuple[str, int, tuple[int, ...] | None]]:
    path = tmp_path / "hosts"
    path.write_text("a slots=4\nb slots=4\nc\n")
    found = hosts_of_hostfile(LaunchArgs(**keys), str(path), default_slots=2)
    return [(share.host, share.ranks, share.devices) for share in found]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [("a", 4, None), ("b", 4, None), ("c", 2, None)]),
        ({"num_nodes": 2}, [("a", 4, None), ("b", 4, None)]),
        ({"num_gpus": 1}, [("a", 1, None), ("b", 1, None), ("c", 1, None)]),
        ({"include": "b"}, [("b", 4, None)]),
        ({"include": "c@a:1,3"}, [("a", 2, (1, 3)), ("c", 2, None)]),
        ({"exclude": "b"}, [("a", 4, None), ("c", 2, None)]),
        ({"exclude": "a:0@c"}, [("a", 3, (1, 2, 3)), ("b", 4, None)]),
        ({"exclude": "a:0@c", "num_gpus": 2}, [("a", 2, (1, 2)), ("b", 2, None)]),
    ],
)
def test_filters(tmp_path: Path, keys: dict[str, Any], expected: list[Any]) -> None:
    assert shares(tmp_path, **keys) == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"include": "a", "exclude": "b"}, "only one of them"),
        ({"include": "d"}, "'d' is none of the hostfile's hosts: a, b, c"),
        ({"include": "a:4"}, "'4' is no device of a, which has 4 slots"),
        ({"include": "a:x"}, "'x' is no device of a"),
        ({"exclude": "a@b@c"}, "leave no host"),
        ({"include": "a:0", "num_gpus": 2}, "num_gpus: 2, but include or exclude leave 1 on a"),
        ({"num_nodes": 4}, "num_nodes: 4, but .* has 3"),
    ],
)
def test_filters_that_cannot_be(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        shares(tmp_path, **keys)


def test_a_hostfile_is_named_by_the_configuration_before_the_environment() -> None:
    env = {"DLTS_HOSTFILE": "theirs"}
    assert find_hostfile(LaunchArgs(hostfile="ours"), env) == "ours"
    assert find_hostfile(LaunchArgs(), env) == "theirs"


def test_the_hosts_of_a_slurm_job() -> None:
    env = {"SLURM_JOB_NODELIST": "gpu[08-10]"}
    assert hosts_of_slurm(LaunchArgs(), env, 8) == tuple(
        Share(name, 8) for name in ("gpu08", "gpu09", "gpu10")
    )
    assert hosts_of_slurm(LaunchArgs(num_nodes=1, num_gpus=2), env, 8) == (Share("gpu08", 2),)
    assert hosts_of_slurm(LaunchArgs(num_nodes=2), {}, 8) == (Share(ANY_HOST, 8),) * 2
    with pytest.raises(LaunchError, match="num_nodes: 4, but the Slurm job has 3"):
        hosts_of_slurm(LaunchArgs(num_nodes=4), env, 8)
    with pytest.raises(LaunchError, match="no Slurm job"):
        hosts_of_slurm(LaunchArgs(), {}, 8)
