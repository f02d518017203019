"""The command lines for other hosts, and what of the environment goes with them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from megatron.errors import LaunchError
from megatron.launch.agent import main as agent
from megatron.launch.carried import carried_variables, read_env_file
from megatron.launch.commands import (
    check_launcher,
    environment_of_launcher,
    launcher_command,
    launcher_environment,
)
from megatron.launch.dry_run import dry_run_page
from megatron.launch.hosts import ANY_HOST, Share
from megatron.launch.job import JOB, PID, job_text, stop_text, take_job
from megatron.launch.pdsh import pdsh_command, pdsh_environment, prepare_hosts
from megatron.launch.plan import ROOT, LaunchPlan
from megatron.launch.project import project_version

PLAN = LaunchPlan(
    hosts=(Share("n1", 2), Share("n2", 2)),
    command=("python", "-u", "train.py", "--set", "a=b c"),
    env={"A": "1", "WANDB_API_KEY": "geheim"},
    address="n1",
    port=29500,
    cwd="/work dir",
    run_id="abc",
    launcher_args=("--more",),
    slurm=("--account=me",),
)


def test_a_file_of_variables_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "variables").write_bytes(b"A=\xff\n")
    with pytest.raises(LaunchError, match=r"variables: cannot be read: it is no text"):
        read_env_file(tmp_path / "variables")


def test_pdsh() -> None:
    command = pdsh_command(replace(PLAN, launcher="pdsh"))
    assert command[:7] == ["pdsh", "-S", "-f", "2", "-w", "n1,n2", "--more"]
    assert command[7].startswith("cd '/work dir' && PYTHONPATH=")
    level = replace(PLAN, launcher="pdsh", env={"TORCH_CPP_LOG_LEVEL": "ERROR"})
    assert " && TORCH_CPP_LOG_LEVEL=ERROR PYTHONPATH=" in pdsh_command(level)[-1]
    assert command[7].endswith('-m megatron.launch.agent "${TMPDIR:-/tmp}/deepy-abc-%n" 29500')


def test_what_ssh_says_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'ssh: Could not resolve hostname n2' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(LaunchError) as raised:
        prepare_hosts(PLAN, {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert "\n  n2: ssh: Could not resolve hostname n2\n" in str(raised.value)


@pytest.mark.parametrize("launcher", ["openmpi", "slurm"])
def test_what_a_jobs_script_says_of_ranks_is_not_handed_on(launcher: str) -> None:
    """It would make each process take itself for a whole run, or for rank 0."""
    left = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "1", "HOME": "/h"}
    env = environment_of_launcher(replace(PLAN, launcher=launcher), left)
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["HOME"]) == ("n1", "29500", "/h")
    assert not env.keys() & {"WORLD_SIZE", "RANK", "LOCAL_RANK"}


def test_what_the_user_tells_ssh_stays_and_stands_first() -> None:
    env = pdsh_environment(PLAN, {"PDSH_SSH_ARGS_APPEND": "-p 2222", "PDSH_RCMD_TYPE": "rsh"})
    assert env["PDSH_SSH_ARGS_APPEND"].startswith("-p 2222 -oBatchMode=yes ")
    assert env["PDSH_RCMD_TYPE"] == "ssh"
    asking = pdsh_environment(replace(PLAN, asks=True), {})
    assert "BatchMode" not in asking["PDSH_SSH_ARGS_APPEND"]


@pytest.mark.parametrize(
    ("launcher", "start"),
    [
        ("openmpi", "mpirun -n 4 --host n1:2,n2:2 --map-by slot --bind-to none --more -x A"),
        ("mpich", "mpirun -n 4 -ppn 2 -hosts n1,n2 --more -genvlist A,MASTER_ADDR,MASTER_PORT,"),
        ("impi", "mpirun -n 4 -ppn 2 -hosts n1,n2 --more -genvlist A,I_MPI_PIN,MASTER_ADDR,"),
        ("mvapich", "mpirun -n 4 -ppn 2 -hosts n1,n2 --more -genvlist A,MASTER_ADDR,"),
        (
            "slurm",
            "srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --distribution=block --nodelist=n1,n2 "
            "--kill-on-bad-exit=1 --export=ALL --account=me --more",
        ),
    ],
)
def test_mpi_and_slurm(launcher: str, start: str) -> None:
    plan = replace(PLAN, launcher=launcher)
    command = launcher_command(plan)
    assert " ".join(command).startswith(start)
    assert tuple(command[-5:]) == PLAN.command
    assert launcher_environment(plan)["MASTER_PORT"] == "29500"


def test_the_last_variable_of_mpichs_environment_is_nobodys() -> None:
    """Its process manager keeps that one from the ranks on other hosts."""
    env = environment_of_launcher(replace(PLAN, launcher="mpich"), {"HOME": "/h"})
    assert list(env) == ["HOME", "A", "WANDB_API_KEY", "MASTER_ADDR", "MASTER_PORT", list(env)[-1]]
    again = environment_of_launcher(replace(PLAN, launcher="mpich"), dict(reversed(env.items())))
    assert list(again)[-1] == list(env)[-1]


def test_slurm_may_choose_the_hosts() -> None:
    plan = replace(PLAN, launcher="slurm", hosts=(Share(ANY_HOST, 2),) * 2, address="")
    words = launcher_command(plan)
    assert words[:4] == ["srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2"]
    assert not any(word.startswith("--nodelist") for word in words)
    assert "MASTER_ADDR" not in launcher_environment(plan)
    assert "they meet at the first host:29500" in dry_run_page(plan, accelerators=False)


@pytest.mark.parametrize("launcher", ["pdsh", "openmpi", "mpich", "impi", "mvapich", "slurm"])
def test_no_secret_is_an_argument_or_shown(launcher: str) -> None:
    plan = replace(PLAN, launcher=launcher)
    command = pdsh_command(plan) if launcher == "pdsh" else launcher_command(plan)
    assert not any("geheim" in word for word in command)
    assert "geheim" not in dry_run_page(plan, accelerators=False)


def test_the_page_of_a_dry_run() -> None:
    plan = replace(PLAN, launcher="pdsh", hosts=(Share("n1", 1), Share("n2", 2, (1, 3))), port=None)
    lines = dry_run_page(plan, accelerators=True).splitlines()
    assert lines[0] == "3 ranks on 2 hosts, launcher pdsh"
    assert lines[1] == "they meet at n1:a free port"
    assert [line.split() for line in lines[3:6]] == [
        ["n1", "0", "0", "0"],
        ["n2", "1", "0", "1"],
        ["n2", "2", "1", "3"],
    ]


@pytest.mark.parametrize(("name", "status"), [("INT", 130), ("TERM", 143)])
def test_a_signal_while_an_agent_loads_starts_nothing(
    tmp_path: Path, name: str, status: int
) -> None:
    """It has not said yet which process it is."""
    folder = tmp_path / "deepy"
    folder.mkdir()
    touched = replace(PLAN, command=("touch", str(tmp_path / "started")), meets=False)
    (folder / JOB).write_text(job_text(touched, 0))
    subprocess.run(["/bin/sh", "-c", stop_text(str(folder), name)], check=False)
    assert agent([str(folder), "29500"]) == status
    assert list(tmp_path.iterdir()) == []


def test_a_signal_reaches_an_agent_that_runs(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        (tmp_path / PID).write_text(f"{process.pid}\n")
        subprocess.run(["/bin/sh", "-c", stop_text(str(tmp_path), "TERM")], check=True)
        assert process.wait(timeout=30) == -signal.SIGTERM
    # One whose folder is gone has ended.
    gone = subprocess.run(
        ["/bin/sh", "-c", stop_text(str(tmp_path / "gone"), "TERM")],
        capture_output=True,
        check=False,
    )
    assert gone.stderr == b""


def test_an_agents_file_is_read_once(tmp_path: Path) -> None:
    plan = replace(PLAN, launcher="pdsh", hosts=(Share("n1", 2), Share("n2", 1, (3,))))
    (tmp_path / JOB).write_text(job_text(plan, 1))
    found, node = take_job(tmp_path, 29500)
    assert node == 1
    assert found == replace(plan, launcher_args=(), slurm=())
    assert [path.name for path in tmp_path.iterdir()] == [PID]
    with pytest.raises(LaunchError, match="has left no file here"):
        take_job(tmp_path, 29500)


def test_variables_to_carry(tmp_path: Path) -> None:
    env = {"NCCL_DEBUG": "INFO", "HOSTNAME": "x", "MY_PATH": "y", "PYTHONPATH": "p", "TMPDIR": "t"}
    found = carried_variables(env, ("MY_*",), tmp_path, tmp_path)
    assert found == {"NCCL_DEBUG": "INFO", "MY_PATH": "y", "PYTHONPATH": "p"}
    (tmp_path / ".deepspeed_env").write_text("# ours\nexport X=a=b\nNCCL_DEBUG=WARN\n")
    found = carried_variables(env, None, tmp_path, tmp_path / "none")
    assert found == {"NCCL_DEBUG": "WARN", "PYTHONPATH": "p", "X": "a=b"}
    with pytest.raises(LaunchError, match="launch_env: GONE is not set here"):
        carried_variables(env, ("GONE",), tmp_path, tmp_path)
    with pytest.raises(LaunchError, match="DS_ENV_FILE=nowhere: no such file"):
        carried_variables({"DS_ENV_FILE": "nowhere"}, None, tmp_path, tmp_path)


def test_a_bad_line_of_an_environment_file(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("A=1\n\nnonsense\n")
    with pytest.raises(LaunchError, match=r":3: expected NAME=VALUE, found 'nonsense'"):
        read_env_file(path)


def test_a_launcher_must_be_there_and_be_the_right_one(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path)}
    with pytest.raises(LaunchError, match="launcher: slurm: srun is not installed here"):
        check_launcher("slurm", env)
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    fake.chmod(0o755)
    check_launcher("openmpi", env)
    with pytest.raises(LaunchError, match=r"is another MPI's\n  found: mpirun \(Open MPI\) 4.1.4"):
        check_launcher("mpich", env)


@pytest.fixture
def two_hosts(tmp_path: Path) -> tuple[LaunchPlan, dict[str, str]]:
    """A plan, and an environment in which ``ssh n2`` leads to a host with a project of its own."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "there" / "megatron").mkdir(parents=True)
    for path in ROOT.glob("*.py"):
        shutil.copy(path, tmp_path / "there")
    shutil.copytree(ROOT / "megatron", tmp_path / "there" / "megatron", dirs_exist_ok=True)
    (tmp_path / "ssh").write_text(
        "#!/bin/bash\nhost=${@: -2:1} text=${@: -1}\n"
        f"here={ROOT} there={tmp_path / 'there'}\n"
        "if [ $host = n2 ]; then\n"
        '    for end in /megatron " "; do text=${text//"$here$end"/"$there$end"}; done\n'
        'fi\nexec bash -c "$text"\n'
    )
    (tmp_path / "ssh").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp")}
    return replace(PLAN, launcher="pdsh", cwd=str(tmp_path), port=None), os.environ | env


def test_hosts_are_asked_for_what_they_have(
    two_hosts: tuple[LaunchPlan, dict[str, str]], tmp_path: Path
) -> None:
    plan, env = two_hosts
    assert prepare_hosts(plan, env) > 0
    assert len(list((tmp_path / "tmp").glob(f"*/{JOB}"))) == 2


def test_another_version_of_the_project_stops_the_start(
    two_hosts: tuple[LaunchPlan, dict[str, str]], tmp_path: Path
) -> None:
    plan, env = two_hosts
    with (tmp_path / "there/megatron/ranks.py").open("a") as file:
        file.write("\n")
    there, here = project_version(tmp_path / "there"), project_version(ROOT)
    with pytest.raises(LaunchError) as refused:
        prepare_hosts(plan, env)
    assert str(refused.value).splitlines() == [
        "1 of 2 hosts cannot take part; nothing was started",
        f"  n2: another version of this project in {ROOT}: {there} there, {here} on "
        f"{socket.gethostname()} (here)",
        f"  to do: copy this one there (rsync -a --delete {ROOT}/megatron {ROOT}/*.py n2:{ROOT}/), or bring "
        "both to one commit",
    ]
    assert list((tmp_path / "tmp").iterdir()) == []
    # The doctor looks at it itself, and shows more.
    prepare_hosts(replace(plan, meets=False), env)


def test_a_port_that_is_taken_on_the_first_host_stops_the_start(
    two_hosts: tuple[LaunchPlan, dict[str, str]], tmp_path: Path
) -> None:
    plan, env = two_hosts
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LaunchError) as refused:
            prepare_hosts(replace(plan, port=port), env)
    assert str(refused.value).splitlines()[1:] == [
        f"  n1: master_port: {port} cannot be used: Address already in use",
        "  to do: set master_port to a free port, or leave it out and one is found",
    ]
    assert list((tmp_path / "tmp").iterdir()) == []
    assert prepare_hosts(replace(plan, port=port), env) == port
