"""deepy.py with real, small scripts: exit statuses, messages, signals, ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """\
{ "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 8,
  "train_micro_batch_size_per_gpu": 2, "train_iters": 3 }
"""

pytestmark = pytest.mark.ranks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yml").write_text(CONFIG)
    return tmp_path


def environment() -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    env.pop("OMP_NUM_THREADS", None)
    return env | {"DS_ACCELERATOR": "cpu"}


def start(folder: Path, script: str, *options: str, ranks: int = 2) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(script)
    command = [
        sys.executable,
        str(ROOT / "deepy.py"),
        "--num_gpus",
        str(ranks),
        "script.py",
        "small",
    ]
    return subprocess.Popen(
        [*command, *options],
        cwd=folder,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str], timeout: float = 60) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, out, err


def wait_for(path: Path, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} never came"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# Another host that is this one; whatever slow is asked first takes it a second.
SSH = """\
bash -c "${@: -1}"
status=$?
host=${@: -2:1}
if ! [ -e asked-$host ]; then touch asked-$host; [ $host = slow ] && sleep 1; fi
exit $status
"""


def test_ranks_get_their_place_the_files_and_the_options(folder: Path) -> None:
    script = (
        "import os, socket, sys, megatron.errors\n"
        "socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))).close()\n"
        "names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR')\n"
        "open('rank' + os.environ['RANK'], 'w').write(repr([[os.environ[n] for n in names], sys.argv[1:]]))\n"
    )
    code, out, err = finish(start(folder, script, "--set", "train_iters=5", "--own", "-i", "x y"))
    assert (code, out, err) == (0, "", "")
    arguments = ["--config-file", "small.yml", "--set", "num_gpus=2", "--set", "train_iters=5"]
    for rank in range(2):
        place = [str(rank), "2", str(rank), "2", "127.0.0.1"]
        wanted = repr([place, [*arguments, "--own", "-i", "x y"]])
        assert (folder / f"rank{rank}").read_text() == wanted


def test_first_error_first_one_summary_line_and_the_ranks_status(folder: Path) -> None:
    script = (
        "import os, time\n"
        "from megatron.errors import DataError, run_door\n"
        "def main():\n"
        "    if os.environ['RANK'] == '1':\n"
        "        raise DataError('data/x.bin: found 3 bytes, expected 8')\n"
        "    time.sleep(60)\n"
        "run_door(main)\n"
    )
    begin = time.monotonic()
    code, out, err = finish(start(folder, script))
    assert time.monotonic() - begin < 30
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "rank 1: error: data/x.bin: found 3 bytes, expected 8",
        "deepy.py: rank 1 of 2 ended with status 2; the others were stopped",
    ]


def test_a_killed_rank_ends_all(folder: Path) -> None:
    script = (
        "import os, signal, time\n"
        "open('pid' + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
        "if os.environ['RANK'] == '0':\n"
        "    while not os.path.exists('pid1'):\n"
        "        time.sleep(0.02)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(60)\n"
    )
    code, _, err = finish(start(folder, script), timeout=40)
    assert code == 128 + signal.SIGKILL
    assert err == "deepy.py: rank 0 of 2 ended with signal SIGKILL; the others were stopped\n"
    assert not is_running(int((folder / "pid1").read_text()))


SAVING = (
    "import os, signal, time\n"
    "stop = []\n"
    "signal.signal(signal.SIGTERM, lambda *_: stop.append('SIGTERM'))\n"
    "signal.signal(signal.SIGINT, lambda *_: stop.append('SIGINT'))\n"
    "open('pid' + os.environ['RANK'] + '.tmp', 'w').write(str(os.getpid()))\n"
    "os.rename('pid' + os.environ['RANK'] + '.tmp', 'pid' + os.environ['RANK'])\n"
    "while not stop:\n"
    "    time.sleep(0.02)\n"
    "open('asked' + os.environ['RANK'], 'w').write(stop[0])\n"
    "time.sleep({save_seconds})\n"
    "open('saved' + os.environ['RANK'], 'w').write(repr(stop))\n"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_reaches_every_rank_once_and_is_waited_for(
    folder: Path, number: signal.Signals
) -> None:
    process = start(folder, SAVING.format(save_seconds=1.0))
    wait_for(folder / "pid0")
    wait_for(folder / "pid1")
    process.send_signal(number)
    code, _, err = finish(process)
    assert (code, err) == (0, "")
    for rank in range(2):
        assert (folder / f"saved{rank}").read_text() == repr(["SIGTERM"])


def test_a_second_interrupt_kills(folder: Path) -> None:
    process = start(folder, SAVING.format(save_seconds=60))
    wait_for(folder / "pid0")
    wait_for(folder / "pid1")
    process.send_signal(signal.SIGINT)
    wait_for(folder / "asked0")
    wait_for(folder / "asked1")
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process, timeout=20)
    assert code == 128 + signal.SIGKILL
    assert "after SIGINT" in err
    assert (folder / "asked0").read_text() == "SIGINT"
    assert not (folder / "saved0").exists()
    assert not is_running(int((folder / "pid0").read_text()))
    assert not is_running(int((folder / "pid1").read_text()))


def test_one_rank_runs_in_place(folder: Path) -> None:
    script = "import os\nprint('LOCAL_RANK' in os.environ, os.getpid())\nraise SystemExit(7)\n"
    process = start(folder, script, ranks=1)
    code, out, _ = finish(process)
    assert code == 7
    assert out == f"False {process.pid}\n"


def test_what_a_shell_has_left_is_not_for_one_rank(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two ranks do not: their agent says who they are and where they meet."""
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("MASTER_PORT", "1")
    script = (
        "import os\n"
        "from megatron.runtime.world import World\n"
        "print(World.from_env() == World(), os.environ.get('MASTER_PORT'))\n"
    )
    assert finish(start(folder, script, ranks=1))[:2] == (0, "True None\n")


def test_a_dry_run_starts_nothing_where_a_scheduler_has_started_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "script.py").write_text("open('started', 'w')\n")
    command = [sys.executable, str(ROOT / "deepy.py"), "--dry-run", "script.py", "small"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment(), "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "--dry-run: this process is rank 0 of 2 already" in done.stderr
    assert not (folder / "started").exists()


def test_a_start_that_is_stopped_while_it_asks_hosts_leaves_nothing_there(folder: Path) -> None:
    """The file for each host has the user's secrets in it."""
    (folder / "script.py").touch()
    (folder / "hosts").write_text("quick slots=1\nslow slots=1\n")
    for program, text in (("pdsh", ""), ("ssh", SSH)):
        (folder / program).write_text(f"#!/bin/bash\n{text}")
        (folder / program).chmod(0o755)
    temporary = folder / "temporary"
    temporary.mkdir()
    env = environment()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "deepy.py"), "--hostfile", "hosts", "script.py", "small"],
        cwd=folder,
        env={**env, "PATH": f"{folder}:{env['PATH']}", "TMPDIR": str(temporary)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for(folder / "asked-quick")
    wait_for(folder / "asked-slow")
    assert {path.name for path in temporary.glob("deepy-*/*")} == {"job.json"}
    process.send_signal(signal.SIGTERM)
    code, _, _ = finish(process)
    assert code == 128 + signal.SIGTERM
    assert list(temporary.iterdir()) == []


def test_a_port_in_use_is_named(folder: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        code, _, err = finish(start(folder, "", "--set", f"master_port={port}"))
    assert code == 2
    assert err.startswith(f"error: master_port: {port} cannot be used: Address already in use\n")


def test_a_named_port_is_used(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    script = "import os\nopen('port' + os.environ['RANK'], 'w').write(os.environ['MASTER_PORT'])\n"
    code, _, err = finish(start(folder, script, "--set", f"master_port={port}"))
    assert (code, err) == (0, "")
    assert [(folder / f"port{rank}").read_text() for rank in range(2)] == [str(port)] * 2


def test_a_bad_configuration_starts_nothing_and_imports_no_torch(folder: Path) -> None:
    (folder / "script.py").write_text("open('started', 'w')\n")
    command = [sys.executable, "-X", "importtime", str(ROOT / "deepy.py"), "script.py", "small"]
    result = subprocess.run(
        [*command, "--set", "train_itres=3"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    imports = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    said = [line for line in result.stderr.splitlines() if not line.startswith("import time:")]
    assert (result.returncode, result.stdout) == (2, "")
    assert said == ["error: command line: train_itres: unknown key; did you mean train_iters?"]
    assert any(line.endswith("megatron.neox_arguments") for line in imports)
    assert not [line for line in imports if line.split("|")[-1].strip() in ("torch", "deepspeed")]
    assert not (folder / "started").exists()
