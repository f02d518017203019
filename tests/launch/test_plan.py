"""From a command line and a configuration to what is started; nothing is, here."""

from __future__ import annotations

import base64
import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron.errors import ConfigError, LaunchError
from megatron.launch import machine
from megatron.launch.command_line import Command, parse_command
from megatron.launch.machine import accelerator_count, usable_cores
from megatron.launch.plan import ROOT, LaunchPlan, check_configuration, plan_launch
from tests.support.small_config import small

CPU = {"DS_ACCELERATOR": "cpu"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yml").write_text(yaml.safe_dump(small()))
    (tmp_path / "train.py").write_text("")
    return tmp_path


def plan(*argv: str, env: dict[str, str] = CPU) -> LaunchPlan:
    command = parse_command(argv)
    return plan_launch(command, check_configuration(command), env)


# The command line.


def test_a_command_line_in_all_its_parts() -> None:
    launcher = ["--num_gpus", "4", "--master-port", "7000"]
    configuration = ["-d", "configs", "125M", "local_setup", "--set", "a=1", "--set", "b=x=y"]
    configuration += ["--deepspeed_config", "ds.json", "--iteration", "5", "-i", "in.txt"]
    own = ["--own", "x", "run.yml", "--set", "c=2", "-i", "y"]
    argv = [*launcher, "train.py", *configuration, *own]
    assert parse_command(argv) == Command(
        script="train.py",
        configs=("125M", "local_setup"),
        conf_dir="configs",
        deepspeed_config="ds.json",
        overrides=(
            "num_gpus=4",
            "master_port=7000",
            "a=1",
            "b=x=y",
            "iteration=5",
            "sample_input_file=in.txt",
        ),
        own=("--own", "x", "run.yml", "--set", "c=2", "-i", "y"),
        check_only=False,
    )


def test_hosts_that_slurm_is_to_choose() -> None:
    """Where the ranks meet is not known before: they find out themselves."""
    asked = ("--launcher", "slurm", "--num_nodes", "2", "--num_gpus", "2", "train.py", "run.yml")
    found = plan(*asked)
    assert (found.ranks, found.address) == (4, "")
    assert "NEOX_HOSTS" not in found.env
    assert plan("--master_addr", "n7", *asked).address == "n7"


def test_a_check_needs_no_script() -> None:
    command = parse_command(["--check", "a.yml", "b", "--set", "x=1"])
    assert (command.script, command.configs) == ("train.py", ("a.yml", "b"))
    assert (command.check_only, command.names_script) == (True, False)
    command = parse_command(["--check", "--num_gpus", "2", "-d", "configs", "125M"])
    assert (command.conf_dir, command.configs) == ("configs", ("125M",))
    assert command.overrides == ("num_gpus=2",)
    assert parse_command(["--check", "eval.py", "a.yml"]).names_script
    assert parse_command(["--deepspeed-json", "a.yml"]).check_only


def test_files_and_options_in_any_order() -> None:
    command = parse_command(["train.py", "a", "-dconfigs", "b", "--set=x=1", "--config-file", "c"])
    assert (command.configs, command.conf_dir) == (("a", "b", "c"), "configs")
    assert command.overrides == ("x=1",)


def test_what_follows_two_dashes_is_the_scripts_own() -> None:
    command = parse_command(["eval.py", "run", "--", "-i", "x"])
    assert (command.configs, command.own) == (("run",), ("-i", "x"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no script is named"),
        (["--num_gpus", "2"], "no script is named"),
        (["run.yml", "train.py"], "expected a script such as train.py, found run.yml"),
        (["--nmu_gpus", "train.py"], "unknown option --nmu_gpus before the script"),
        (["none.py", "run"], "no such script: none.py"),
        (["generate", "run"], r"no such script: generate .*; did you mean generate\.py\?"),
        (["trian.py", "run"], r"no such script: trian\.py .*; did you mean train\.py\?"),
        (["--check", "train", "run"], r"train is no configuration file; did you mean the script t"),
        (["--deepspeed_json", "eval", "run"], r"did you mean the script eval\.py\?"),
        (["train.py", "--num_gpus", "2", "run"], "--num_gpus is a launcher option: put it before"),
        (["train.py", "run", "--own", "--set", "num_gpus=1"], "--set num_gpus stands after --own"),
        (["train.py", "run", "--own", "--set=num-gpus=1"], "--set num-gpus stands after --own"),
        (["train.py", "run", "--own", "-d", "configs"], "-d stands after --own"),
        (["train.py"], "no configuration"),
        (["--check", "run", "--nmu_gpus", "2"], "unknown option --nmu_gpus; see"),
    ],
)
def test_bad_command_lines(argv: list[str], message: str) -> None:
    with pytest.raises((LaunchError, ConfigError), match=message):
        plan(*argv)


def test_a_configuration_may_be_called_like_a_script(folder: Path) -> None:
    (folder / "train.yml").write_text("")
    assert parse_command(["--check", "train"]).configs == ("train",)


def test_the_help_lists_each_option_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_command(["--help"])
    usage, listed = capsys.readouterr().out.split("\noptions:\n")
    options = re.findall(r"--[a-z][\w-]*", re.sub(r"(?m)^ {3,}.*$", "", listed))
    assert "--num_gpus" in options
    assert len({option.replace("-", "_") for option in options}) == len(options)
    examples = [line for line in usage.splitlines() if line.startswith("  ./deepy.py doctor")]
    assert len(examples) == 1
    # Both spellings go on being read.
    for spelling in ("--num-gpus", "--num_gpus"):
        assert parse_command([spelling, "2", "train.py", "run"]).overrides == ("num_gpus=2",)
    for spelling in ("--dry-run", "--dry_run"):
        assert parse_command([spelling, "train.py", "run"]).dry_run
    assert parse_command(["--no-ssh-check", "train.py", "a"]).overrides == ("no_ssh_check=true",)


# The plan.


def test_the_ranks_command_and_environment(folder: Path) -> None:
    found = plan(
        "train.py", "run", "--set", "num_gpus=2", "--own", env=CPU | {"PYTHONPATH": "mine"}
    )
    assert found.ranks == 2
    assert found.command == (
        *(sys.executable, "-u", "train.py", "--config-file", "run.yml", "--set", "num_gpus=2"),
        "--own",
    )
    assert found.env["PYTHONPATH"] == f"{ROOT}:mine"
    assert found.env["OMP_NUM_THREADS"] == str(max(1, usable_cores() // 2))
    assert found.env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert found.env["TORCH_CPP_LOG_LEVEL"] == "ERROR"
    assert found.port is None


def test_the_checked_values_travel_in_the_environment_not_in_the_arguments(folder: Path) -> None:
    found = plan("train.py", "run", "--set", "seed=77")
    sent = json.loads(zlib.decompress(base64.b64decode(found.env["MEGATRON_CONFIGURATION"])))
    args = check_configuration(parse_command(["train.py", "run", "--set", "seed=77"]))
    assert sent["hash"] == args.hash()
    assert sent["values"]["seed"] == 77
    assert not any("hash" in argument for argument in found.command)


def test_deepspeeds_file_reaches_the_ranks(folder: Path) -> None:
    (folder / "ds.json").write_text('{"gradient_clipping": 0.5}')
    found = plan("train.py", "run", "--deepspeed_config", "ds.json")
    assert found.command[3:] == ("--config-file", "run.yml", "--deepspeed_config", "ds.json")


def test_what_the_user_has_set_stays(folder: Path) -> None:
    for name, value in (
        ("OMP_NUM_THREADS", "7"),
        ("OMP_WAIT_POLICY", "ACTIVE"),
        ("TORCH_CPP_LOG_LEVEL", "INFO"),
    ):
        assert name not in plan("train.py", "run", env=CPU | {name: value}).env
    assert "DS_ACCELERATOR" not in plan("train.py", "run").env


@pytest.mark.parametrize(
    ("hostfile", "changes", "accelerators", "ranks"),
    [
        (None, {}, 0, 1),
        (None, {}, 8, 8),
        (None, {"num_gpus": 3}, 0, 3),
        (None, {"num_gpus": 3}, 8, 3),
        ("localhost slots=4", {}, 0, 4),
        ("localhost slots=4", {"num_gpus": 2}, 0, 2),
        ("localhost", {}, 2, 2),
        ("localhost slots=4\nfar slots=4", {"num_nodes": 1}, 0, 4),
    ],
)
def test_how_many_ranks(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    hostfile: str | None,
    changes: dict[str, Any],
    accelerators: int,
    ranks: int,
) -> None:
    monkeypatch.setattr("megatron.launch.plan.accelerator_count", lambda env: accelerators)
    if hostfile is not None:
        (folder / "hosts").write_text(hostfile)
        changes = changes | {"hostfile": "hosts"}
    (folder / "run.yml").write_text(yaml.safe_dump(small(**changes)))
    assert plan("train.py", "run", env={}).ranks == ranks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hostfile": "none"}, r"hostfile: /.*/none: cannot be read: No such file"),
        ({"hostfile": "two"}, "master_addr: localhost is another machine on each host"),
        ({"hostfile": "two", "num_nodes": 3}, "num_nodes: 3, but two has 2"),
        ({"include": "node1"}, "include needs the names of the hosts"),
        ({"num_nodes": 2}, "num_nodes: 2 needs the names of the hosts"),
        ({"deepspeed_slurm": True}, "launcher: slurm: this is no Slurm job"),
        ({"deepspeed_slurm": True, "deepspeed_mpi": True}, "only one of them can be true"),
        (
            {"hostfile": "uneven", "launcher": "mpich"},
            "mpich starts equally many ranks on each host, found a 2, b 1",
        ),
        (
            {"hostfile": "uneven", "launcher": "openmpi", "exclude": "a:0"},
            "openmpi starts ranks on whole hosts; a is cut to the devices 1",
        ),
        ({"num_gpus": 9}, "num_gpus: 9 processes need a GPU each, 8 are visible"),
        (
            {"train_batch_size": 6, "num_gpus": 2},
            "train_batch_size: 6 / .* = 1.5 is no whole number",
        ),
    ],
)
def test_what_cannot_be_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("megatron.launch.plan.accelerator_count", lambda env: 8)
    (folder / "two").write_text("localhost\nfar\n")
    (folder / "uneven").write_text("a slots=2\nb slots=1\n")
    (folder / "run.yml").write_text(yaml.safe_dump(small(**changes)))
    with pytest.raises((LaunchError, ConfigError), match=message):
        plan("train.py", "run", env={})


def test_only_training_needs_a_batch_that_fits(folder: Path) -> None:
    (folder / "generate.py").write_text("")
    (folder / "run.yml").write_text(yaml.safe_dump(small(train_batch_size=6, num_gpus=2)))
    assert plan("generate.py", "run").ranks == 2


# The machine.


@pytest.mark.parametrize(
    ("present", "env", "count"),
    [
        (0, {}, 0),
        (4, {}, 4),
        (4, {"DS_ACCELERATOR": "cpu"}, 0),
        (4, {"CUDA_VISIBLE_DEVICES": "2,3"}, 2),
        (4, {"CUDA_VISIBLE_DEVICES": ""}, 0),
        (4, {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 1),
        (4, {"CUDA_VISIBLE_DEVICES": "GPU-1234,GPU-5678"}, 2),
        (0, {"CUDA_VISIBLE_DEVICES": "0,1"}, 0),
    ],
)
def test_accelerators(tmp_path: Path, present: int, env: dict[str, str], count: int) -> None:
    for name in (*(f"nvidia{i}" for i in range(present)), "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert accelerator_count(env, tmp_path) == count


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("150000 100000", 1), ("50000 100000", 1)]
)
def test_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(8)))
    assert usable_cores(tmp_path / "none") == 8
    (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores(tmp_path / "cpu.max") == cores
