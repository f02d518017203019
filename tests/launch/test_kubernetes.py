"""Protects tools/cluster/kubernetes.yml: what its parts say of each other, and that its pods' command trains.

What Kubernetes itself does is done here by hand: ``$(NAME)`` becomes the variable's value, each pod gets its
index and its mounts, and SIGTERM comes before SIGKILL.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import parse_args

from megatron.neox_arguments import NeoXArgs
from tests.support.doors import ROOT, Done, descendants, environment, finish, wait_until
from tests.support.ranks import free_port
from tests.support.tiny import metrics, tiny_config, write_tokens

MANIFEST = ROOT / "tools" / "cluster" / "kubernetes.yml"
OBJECTS: dict[tuple[str, str], Any] = {
    (one["kind"], one["metadata"]["name"]): one
    for one in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
}
JOB = OBJECTS["Job", "neox"]["spec"]
POD = JOB["template"]["spec"]
(CONTAINER,) = POD["containers"]
SETUP = OBJECTS["ConfigMap", "neox"]["data"]["cluster.yml"]
PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


def words_of_pod(index: int) -> list[str]:
    """The container's command line, as the kubelet writes it for the pod of that index."""
    words = [*CONTAINER["command"], *CONTAINER["args"]]
    assert re.findall(r"\$\((\w+)\)", " ".join(words)) == ["JOB_COMPLETION_INDEX"]
    return [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in words]


def test_a_pod_is_a_node_and_has_a_process_for_each_gpu() -> None:
    told = parse_args(words_of_pod(1)[1:])
    assert JOB["completionMode"] == "Indexed"
    assert JOB["completions"] == JOB["parallelism"] == int(told.nnodes)
    assert CONTAINER["resources"]["limits"]["nvidia.com/gpu"] == int(told.nproc_per_node)
    assert told.node_rank == 1
    assert (JOB["backoffLimit"], POD["restartPolicy"]) == (0, "Never")


def test_the_ranks_meet_at_the_first_pod_by_the_name_that_the_service_gives_it() -> None:
    service = OBJECTS["Service", POD["subdomain"]]["spec"]
    assert parse_args(words_of_pod(0)[1:]).master_addr == f"neox-0.{POD['subdomain']}"
    # "None" in words: a headless service. Names are needed before a pod is ready.
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"] == JOB["template"]["metadata"]["labels"]


def test_ranks_have_almost_all_the_time_that_a_pod_has_to_save() -> None:
    given = parse_args(words_of_pod(0)[1:]).shutdown_timeout
    assert given is not None
    assert 0 < POD["terminationGracePeriodSeconds"] - given <= 60


def test_all_that_is_mounted_is_there() -> None:
    volumes = {
        volume.pop("name"): volume for volume in yaml.safe_load(yaml.safe_dump(POD["volumes"]))
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert set(volumes) == set(mounts)
    for name in ("data", "save"):
        claim = OBJECTS[
            "PersistentVolumeClaim", volumes[name]["persistentVolumeClaim"]["claimName"]
        ]
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert mounts["shm"] == "/dev/shm"
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    setup = yaml.safe_load(SETUP)
    for key in ("data_path", "vocab_file", "merge_file", "save", "load", "log_dir"):
        assert Path(setup[key]).parts[1] in ("data", "save"), key
    assert setup["use_shared_fs"]


def test_the_configuration_is_one(tmp_path: Path) -> None:
    files = words_of_pod(0)[words_of_pod(0).index("--config-file") + 1 :]
    assert files == ["configs/125M.yml", "/config/cluster.yml"]
    (tmp_path / "cluster.yml").write_text(SETUP)
    args = NeoXArgs.from_ymls([ROOT / files[0], tmp_path / "cluster.yml"], world_size=16)
    assert args.notes == ()


def test_the_page_speaks_of_volumes_and_keys_of_the_manifest(tmp_path: Path) -> None:
    section = PAGE.split("## Kubernetes")[1].split("\n## ")[0]
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", section, re.S)]
    (own,) = (block for block in blocks if isinstance(block, dict))
    (tmp_path / "cluster.yml").write_text(yaml.safe_dump({**yaml.safe_load(SETUP), **own}))
    args = NeoXArgs.from_ymls([ROOT / "configs/125M.yml", tmp_path / "cluster.yml"], world_size=16)
    assert not args.data.use_shared_fs
    ((volume,),) = (block for block in blocks if isinstance(block, list))
    assert volume["name"] == "data"
    assert "hostPath" in volume


@pytest.mark.slow
@pytest.mark.ranks
def test_two_pods_train_and_save_when_one_of_them_is_evicted(tmp_path: Path) -> None:
    """All ranks save when one is told to end; its pod's status is not 0, so that the Job has failed."""
    first, second = run_pods(tmp_path)
    assert second.status == 1, second.all
    assert "got signal: 15" in second.err
    assert "stopped by a signal to another rank after step" in first.out, first.all
    last = [row["iteration"] for row in metrics(tmp_path / "save" / "logs")][-1]
    assert last < 10_000
    assert (tmp_path / "save" / "checkpoints" / "latest").read_text() == f"global_step{last}"


def run_pods(folder: Path) -> tuple[Done, Done]:
    """Both pods on this host, with a process each, until the second one is evicted."""
    write_tokens(folder / "data" / "mydataset_text_document")
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(ROOT / "tests" / "assets" / "gpt2" / name, folder / "data")
    setup = yaml.safe_load(re.sub(r": /(data|save)/", rf": {folder}/\1/", SETUP))
    kept = {key: value for key, value in tiny_config(folder).items() if key not in setup}
    ours = {"train_iters": 10_000, "lr_decay_iters": 10_000, "eval_iters": 0}
    mounts = {
        "configs/125M.yml": folder / "model.yml",
        "/config/cluster.yml": folder / "cluster.yml",
    }
    mounts["configs/125M.yml"].write_text(json.dumps({**kept, **ours}))
    mounts["/config/cluster.yml"].write_text(json.dumps(setup))
    port = free_port()
    told = {
        "torchrun": str(Path(sys.executable).with_name("torchrun")),
        "--nproc-per-node=8": "--nproc-per-node=1",
        "--master-addr=neox-0.neox": "--master-addr=127.0.0.1",
        "--master-port=29500": f"--master-port={port}",
        **{name: str(path) for name, path in mounts.items()},
    }
    pods = [
        subprocess.Popen(
            [
                told.pop(word, word) if index else told.get(word, word)
                for word in words_of_pod(index)
            ],
            cwd=ROOT,
            env=environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for index in range(2)
    ]
    assert not told
    log = folder / "save" / "logs" / "metrics.jsonl"
    wait_until(lambda: log.exists() and log.read_text().count("\n") > 2, pods[1])
    pods[1].send_signal(signal.SIGTERM)
    ends = finish(pods[1])
    # Its ranks end with the others; what is left of it waits for the other torchrun, minutes long.
    wait_until(lambda: not descendants(pods[0].pid), pods[0], timeout=30)
    pods[0].kill()
    return finish(pods[0]), ends
