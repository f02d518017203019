"""Two real probes over loopback: what a person sees, from the command to the exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron.neox_arguments import NeoXArgs
from tests.checkpointing.folders_on_disk import make_checkpoint
from tests.support.doors import ROOT, finish, start
from tests.support.ranks import free_port
from tests.support.tiny import tiny_config, write_tokens

pytestmark = pytest.mark.ranks


def test_two_probes_meet_and_compare(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    config = tmp_path / "run.yml"
    config.write_text(json.dumps(tiny_config(tmp_path)))
    # From a folder that is not the project's.
    command = [sys.executable, str(ROOT / "deepy.py"), "doctor", "--json", str(config)]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    # The second one would read another configuration.
    probes = [
        subprocess.Popen(
            [*command, *more],
            cwd=tmp_path,
            env={**os.environ, **common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, more in enumerate([[], ["--set", "seed=99"]])
    ]
    first, second = (probe.communicate(timeout=100)[0] for probe in probes)
    assert [probe.returncode for probe in probes] == [2, 0]
    assert second == ""
    found: dict[str, Any] = json.loads(first)
    errors = [f["text"] for f in found["findings"] if f["level"] == "error"]
    assert [error[:28] for error in errors] == ["another configuration: hash "]
    assert found["verdict"]["data"] == "ok"
    assert found["facts"]["reduce"].keys() == set(found["hosts"])
    assert len(found["facts"]["links"]) == 1
    assert list(tmp_path.rglob(".probe-*")) == []


def test_this_host_alone(tmp_path: Path) -> None:
    config = tmp_path / "run.yml"
    config.write_text(json.dumps(tiny_config(tmp_path)))
    done = finish(start("deepy.py", "doctor", str(config), folder=tmp_path), timeout=100)
    assert done.status == 2, done.all
    missing = f"error    {os.uname().nodename}: {tmp_path}/data/tiny.bin: No such file or directory"
    assert missing in done.out
    begins = f"ok       load {tmp_path}/checkpoints: no checkpoint yet: the run starts from step 0"
    assert begins in done.out
    assert "data: missing," in done.out.splitlines()[-1]


@pytest.mark.slow
def test_a_checkpoint_that_does_not_fit_is_seen(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data" / "tiny")
    config = tmp_path / "run.yml"
    settings = tiny_config(tmp_path)
    config.write_text(json.dumps(settings))
    text = json.dumps(NeoXArgs.from_dict(settings | {"hidden_size": 64}).flat())
    name = "configs/effective_config.json"
    folder = make_checkpoint(tmp_path / "checkpoints", 20, disks=[{name: len(text)}])
    (folder / name).write_text(text)
    (folder.parent / "latest").write_text(folder.name)
    done = finish(start("deepy.py", "doctor", str(config), folder=tmp_path), timeout=100)
    assert done.status == 2, done.all
    lines = done.out.splitlines()
    where = f"error    {config}:1: load: {folder}: its run trained another model"
    at = next(number for number, line in enumerate(lines) if where in line)
    assert lines[at].endswith("checkpoint → configuration:; hidden_size: 64 → 32")
    assert lines[at + 1].strip().startswith("to do: restore these keys, or start anew")
