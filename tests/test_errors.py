"""Protects how a program ends: status, and what is shown."""

import subprocess
import sys
import time

import pytest

PROGRAM = """
from megatron.errors import DataError, run_door
def main():
    {body}
run_door(main)
"""


def run(body: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize(
    ("body", "status", "shown"),
    [
        ("return None", 0, ""),
        ("return 3", 3, ""),
        ("raise DataError('a.bin: cut')", 2, "error: a.bin: cut\n"),
        ("raise SystemExit('no such flag')", 2, "no such flag\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_status_and_text(body: str, status: int, shown: str) -> None:
    done = run(body)
    assert (done.returncode, done.stderr) == (status, shown)


def test_a_fault_keeps_its_traceback() -> None:
    done = run("raise ValueError('ours')")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ValueError: ours" in done.stderr


def test_a_rank_that_lost_another_is_no_fault_and_lets_the_other_speak() -> None:
    words = "[pair.cc:553] Connection closed by peer [127.0.0.1]:1730. GLHF!"
    begin = time.monotonic()
    done = run(f"raise RuntimeError({words!r})", RANK="1")
    assert time.monotonic() - begin > 2
    assert done.returncode == 1
    assert done.stderr == (
        f"rank 1: error: another rank of this run has ended\n  found: {words}\n"
        "  to do: see that rank's own message\n"
    )
    # A reader of this program's output that goes away is another matter.
    assert "Traceback" in run("raise BrokenPipeError(32, 'Broken pipe')", RANK="1").stderr


def test_an_error_of_all_ranks_is_said_once() -> None:
    body = "raise DataError('everyone sees it', everywhere=True)"
    assert run(body, RANK="0").stderr == "error: everyone sees it\n"
    # Unless this node alone sees it, for all that its first rank knows: the node's others, whose end
    # would be that rank's too, give it time to say so.
    begin = time.monotonic()
    assert run(body, RANK="8", LOCAL_RANK="0").stderr == "error: everyone sees it\n"
    spoken = time.monotonic() - begin
    done = run(body, RANK="9", LOCAL_RANK="1")
    assert (done.returncode, done.stderr) == (2, "")
    assert time.monotonic() - begin - spoken > 6


def test_an_error_of_a_node_is_said_by_its_first_rank_first() -> None:
    body = "raise DataError('no such file here')"

    def seconds(rank: str, local_rank: str) -> float:
        begin = time.monotonic()
        said = run(body, RANK=rank, LOCAL_RANK=local_rank).stderr
        assert said == f"rank {rank}: error: no such file here\n"
        return time.monotonic() - begin

    assert seconds("3", "1") > 2
    for rank in ("0", "2"):
        # A busy machine may take seconds to start a program, but hardly each time.
        assert any(seconds(rank, "0") < 2 for _ in range(5))


def test_a_failing_program_does_not_wait_for_its_threads() -> None:
    body = (
        "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); return 5"
    )
    assert run(body).returncode == 5


def test_a_missing_package_says_which_interpreter_lacks_it() -> None:
    done = run("import no_such_package")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "No module named 'no_such_package'" in done.stderr
    assert ".venv/bin/activate" in done.stderr
