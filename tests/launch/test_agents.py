"""The agents of a start over SSH, before there are ranks: what stops them, and what they say."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from megatron.errors import LaunchError
from megatron.launch.agents_meeting import wait_for_agents
from megatron.launch.hosts import Share
from megatron.launch.job import JOB, NOTHING_STARTED, PID, job_text
from megatron.launch.plan import LaunchPlan
from megatron.launch.remote import _Failures
from tests.launch.test_local_start import CONFIG
from tests.support.doors import ROOT, environment, finish, start

PLAN = LaunchPlan(
    hosts=(Share("n1", 1), Share("n2", 1)),
    command=("false",),
    env={},
    address="127.0.0.1",
    port=None,
    run_id="abc",
)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Another program, which lets others connect and never says a word."""
    with socket.create_server(("", 0)) as listens:
        yield listens


def agent(folder: Path, node: int, port: int) -> subprocess.Popen[str]:
    (folder / "deepy").mkdir()
    (folder / "deepy" / JOB).write_text(job_text(PLAN, node))
    return subprocess.Popen(
        [sys.executable, "-m", "megatron.launch.agent", str(folder / "deepy"), str(port)],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("node", [0, 1])
def test_a_stop_ends_an_agent_that_waits_for_another(
    tmp_path: Path, silent: socket.socket, node: int
) -> None:
    """The first host's waits for the second's; the second's has met a program that is none of ours."""
    port = silent.getsockname()[1]
    with agent(tmp_path, node, port if node else 0) as process:
        if node:
            for _ in range(2):  # it has knocked, then torch has connected
                silent.accept()
        else:
            while not (tmp_path / "deepy" / PID).exists():
                time.sleep(0.05)
        time.sleep(1.0)
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        finally:
            process.kill()  # one that has not heard it would be waited for
        assert time.monotonic() - begin < 5
        assert process.returncode == 128 + signal.SIGTERM
    assert os.listdir(tmp_path) == []


def test_an_agent_that_cannot_have_its_port_says_what_to_do(
    tmp_path: Path, silent: socket.socket
) -> None:
    with agent(tmp_path, 0, silent.getsockname()[1]) as process:
        assert process.stderr is not None
        err = process.stderr.read()
    assert process.returncode == NOTHING_STARTED
    assert "rank 0 cannot listen there" in err
    assert "to do: the port is taken by another program: set master_port (MASTER_PORT)" in err


def test_nobody_waits_for_the_ranks_of_a_start_that_has_none() -> None:
    failures = _Failures(PLAN)
    assert failures.note("n2", NOTHING_STARTED) == 2
    assert (failures.status, failures.grace) == (2, 0.0)
    # The doctor's probes go on: each speaks for itself.
    assert _Failures(replace(PLAN, meets=False)).grace > 0


def test_hosts_that_do_not_come_are_named() -> None:
    with pytest.raises(LaunchError, match=r"1 of 2 hosts have not come within 0\.2 s: n2\n"):
        wait_for_agents(HashStore(), PLAN, 0, 0.2)


# Both hosts are this one; somebody takes the file for the agent of the second away.
SSH = """\
#!/bin/bash
for word; do case $word in lost) lost=1;; esac; done
case "${@: -1}" in *megatron.launch.agent*) [ "$lost" ] && rm "$TMPDIR"/deepy-*-1/job.json;; esac
exec bash -c "${@: -1}"
"""


@pytest.mark.skipif(shutil.which("pdsh") is None, reason="pdsh is not installed")
def test_a_host_that_cannot_start_its_ranks_ends_the_others_at_once(tmp_path: Path) -> None:
    """They have no ranks yet, and would wait for its agent."""
    (tmp_path / "script.py").write_text("open('started', 'w')\n")
    (tmp_path / "small.yml").write_text(CONFIG)
    (tmp_path / "hosts").write_text("well slots=1\nlost slots=1\n")
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = start(
        *("deepy.py", "--hostfile", "hosts", "script.py", "small"),
        folder=tmp_path,
        variables={"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(temporary)},
    )
    done = finish(process, 20)  # before hosts whose ranks have something to save would be stopped
    assert done.status == 2
    assert "lost: error: " in done.out + done.err
    assert "deepy.py: host well ended with status 143" in done.err
    assert not (tmp_path / "started").exists()
    assert list(temporary.iterdir()) == []
