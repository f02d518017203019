"""What the doctor says to facts that a broken cluster would have."""

from __future__ import annotations

import dataclasses
from typing import Any

from megatron.doctor import (
    data_files,
    devices,
    folders,
    hosts,
    limits,
    network,
    reading,
    sharing,
    versions,
)
from megatron.doctor.finding import Finding, names
from megatron.neox_arguments import NeoXArgs
from tests.doctor.findings import GIB, MIB, NEEDS, bad, only
from tests.support.small_config import small

EXT4: Any = {"kind": "ext4", "source": "/dev/sda", "mounted_at": "/"}


def host(name: str, **changes: Any) -> Any:
    return {
        "name": name,
        "address": "10.0.0.1",
        "resolves_to": "10.0.0.1",
        "interfaces": ["lo", "eth0"],
        "chosen": {},
    } | changes


def test_hosts_and_their_names() -> None:
    assert bad(hosts.judge({"a": host("a"), "b": host("b")})) == []
    twice = {"a (node 0)": host("a"), "a (node 1)": host("a")}
    assert "several hosts are called a" in only(hosts.judge(twice), "warning").text
    lost = {"a": host("a"), "b": host("b", resolves_to="127.0.1.1")}
    assert bad(hosts.judge(lost)) == []
    texts = [finding.text for finding in hosts.judge(lost)]
    assert any(
        text.startswith("b: its own name means 127.0.1.1, itself only; a run") for text in texts
    )
    named = host("b", resolves_to="127.0.1.1", chosen={"GLOO_SOCKET_IFNAME": "eth0"})
    assert bad(hosts.judge({"a": host("a"), "b": named})) == []
    wrong = host("b", chosen={"NCCL_SOCKET_IFNAME": "ib"})
    text = only(hosts.judge({"a": host("a"), "b": wrong}), "error").text
    assert text == "b: NCCL_SOCKET_IFNAME=ib, but its interfaces are lo and eth0"


def test_clocks() -> None:
    assert bad(hosts.judge_clocks({"a": 0.0, "b": -0.3})) == []
    assert "3.00 s behind" in only(hosts.judge_clocks({"a": 0.0, "b": -3.0}), "warning").text
    text = only(hosts.judge_clocks({"a": 0.0, "b": 600.0}), "error").text
    assert text == "b: its clock is 10m00s ahead of that of a"


def version(**changes: Any) -> Any:
    return {
        "found": {"python": "3.11.7", "torch": "2.8.0"},
        "project": "1234",
        "folder": "/srv/neox",
        "configuration": "abcd",
        "configuration_error": None,
    } | changes


def test_versions() -> None:
    assert bad(versions.judge({"a": version(), "b": version()})) == []
    other = versions.judge({"a": version(), "b": version(project="99"), "c": version()})
    text = only(other, "error").text
    assert text == "another version of this project: 1234 on a and c; 99 on b in /srv/neox"
    torch = version(found={"python": "3.11.7", "torch": "2.7.0"})
    assert (
        "torch: 2.8.0 on a; 2.7.0 on b"
        in only(versions.judge({"a": version(), "b": torch}), "error").text
    )
    alone = [finding.text for finding in versions.judge({"a": version()})]
    assert alone[:2] == ["python 3.11.7, torch 2.8.0", "this project: 1234"]
    python = version(found={"python": "3.11.9", "torch": "2.8.0"})
    only(versions.judge({"a": version(), "b": python}), "warning")
    config = versions.judge({"a": version(), "b": version(configuration="ffff")})
    assert "hash abcd on a; ffff on b" in only(config, "error").text
    unread = version(configuration=None, configuration_error="c.yml: no such file")
    assert (
        "b: cannot read the configuration"
        in only(versions.judge({"a": version(), "b": unread}), "error").text
    )


def limit(**changes: Any) -> Any:
    return {
        "shm_size": 64 * GIB,
        "shm_free": 64 * GIB,
        "open_files": 65536,
        "locked_memory": 8 * MIB,
        "cores": 16,
        "infiniband": False,
    } | changes


def test_limits() -> None:
    def judged(needs: Any = NEEDS, **changes: Any) -> list[Finding]:
        return list(limits.judge({"a": limit(), "b": limit(**changes)}, needs))

    assert bad(judged()) == []
    small = only(judged(shm_size=64 * MIB, shm_free=64 * MIB), "error")
    assert small.text.startswith(
        "b: /dev/shm has 64.0 MiB, 64.0 MiB free; the workers' batches need"
    )
    assert "--shm-size" in small.to_do
    only(judged(shm_free=500 * MIB), "warning")
    only(judged(None, shm_free=64 * MIB), "warning")
    assert "ulimit -n is 1,024" in only(judged(open_files=1024), "warning").text
    only(judged(open_files=64), "error")
    assert bad(judged(open_files=-1)) == []
    assert "ulimit -l" in only(judged(infiniband=True), "warning").text
    assert bad(judged(infiniband=True, locked_memory=-1)) == []
    assert "5 cores for 6 processes" in only(judged(cores=5), "warning").text
    assert bad(judged(cores=6)) == []


def device(count: int = 2, free: int = 80, memory: int = 500, total: int = 80) -> Any:
    each = {"name": "GPU", "total": total * GIB, "free": free * GIB}
    return {"devices": [each] * count, "memory": memory * GIB, "flops": 1e14, "backend": "nccl"}


def test_memory() -> None:
    def judged(facts: Any, **needs: Any) -> list[Finding]:
        changed = dataclasses.replace(NEEDS, **needs)
        return list(devices.judge({"a": device(), "b": facts}, changed))

    assert bad(judged(device())) == []
    assert (
        "2 device(s) are in use: 10.0 GiB of 80.0 GiB"
        in only(judged(device(free=10)), "warning").text
    )
    assert {f.level for f in bad(judged(device(count=1)))} == {"warning", "error"}
    text = only(judged(device(), device_bytes=100 * GIB), "error").text
    assert text == "a rank needs about 100 GiB of 80.0 GiB (a)"
    only(judged(device(), device_bytes=75 * GIB), "warning")
    held = only(
        judged(device(memory=100), host_bytes=200 * GIB, held_tokens_bytes=180 * GIB), "error"
    )
    assert "180 GiB of it tokens" in held.text
    assert held.to_do.startswith("data_impl: mmap")
    assert held.answers == "memory"


def folder(key: str = "save", **changes: Any) -> Any:
    facts = {
        "key": key,
        "path": "/ck",
        "place": "/ck",
        "problem": None,
        "free": 500 * GIB,
        "system": EXT4,
    }
    return [facts | changes]


def test_folders() -> None:
    def judged(one: Any, other: Any, shared: bool = True) -> list[Finding]:
        key = one[0]["key"]
        ours = {key: folders.RunFolder("/ck", shared if key != "log_dir" else None)}
        return list(folders.judge({"a": one, "b": other}, NEEDS, ours))

    assert bad(judged(folder(), folder())) == []
    closed = only(judged(folder(), folder(problem="Read-only file system")), "error")
    assert closed.text == "b: save /ck: cannot be written: Read-only file system"
    # Each host's own disk holds its part of a checkpoint.
    full = only(judged(folder(), folder(free=6 * GIB), False), "warning")
    assert full.text == "b: save /ck: 6.00 GiB free, a checkpoint takes about 5.00 GiB"
    only(judged(folder(), folder(free=4 * GIB), False), "error")
    # One folder holds all of it.
    only(judged(folder(free=6 * GIB), folder(free=6 * GIB)), "error")
    store = folder("index store", problem="Permission denied")
    assert bad(judged(folder("index store"), store)) == []  # the first host builds
    assert "index_cache_dir" in only(judged(folder("index store"), store, False), "warning").to_do
    only(judged(folder("log_dir"), folder("log_dir", free=1000)), "warning")


def test_one_folder_or_several() -> None:
    nodes = {"a": 0, "b": 1}

    def judged(
        seen_by_b: dict[str, float], shared: bool, key: str = folders.INDEX_STORE
    ) -> list[Finding]:
        facts: Any = {
            "a": {"writes": True, "seen": {"1": 0.1} if seen_by_b else {}},
            "b": {"writes": True, "seen": seen_by_b},
        }
        return list(sharing.judge(key, folders.RunFolder("/ck", shared), facts, nodes))

    assert bad(judged({"0": 0.2}, True)) == []
    assert "7.00 s" in only(judged({"0": 7.0}, True), "warning").text
    private = only(judged({}, True), "error")
    assert "use_shared_fs: false" in private.to_do
    assert "a and b did not see a file that another host made" in private.text
    assert private.answers is None  # copies may be identical
    assert bad(judged({}, False)) == []
    assert "would build the index once" in judged({"0": 0.2}, False)[0].text
    # Checkpoints go by a key of their own.
    assert "use_node_local_storage: true" in only(judged({}, True, "save"), "error").to_do
    assert bad(judged({"0": 0.2}, True, "save")) == []
    assert bad(judged({}, False, "save")) == []
    common = only(judged({"0": 0.2}, False, "save"), "error")
    assert "/ck: one folder for several hosts (a and b saw what others made)" in common.text
    assert "use_node_local_storage: false" in common.to_do


def test_which_folders_of_a_run_are_to_be_one() -> None:
    def shared(**changes: Any) -> dict[str, bool | None]:
        args = NeoXArgs.from_dict(small(log_dir="logs", **changes))
        return {key: folder.shared for key, folder in folders.folders_of(args).items()}

    assert shared(save="ck") == {"log_dir": None, "save": True, "index store": True}
    local = {"checkpoint": {"use_node_local_storage": True}}
    assert shared(save="ck", **local) == {"log_dir": None, "save": False, "index store": True}
    assert shared(save="ck", use_shared_fs=False)["index store"] is False


def data(size: int = 20 * MIB, problem: str | None = None, changed: int = 7, **blocks: str) -> Any:
    found = {"0": "aa", "1": "bb", "2": "cc"} | {key[1:]: value for key, value in blocks.items()}
    one = {"path": "/d/x.bin", "size": size, "problem": problem, "blocks": found, "system": EXT4}
    return [one | {"identity": [3, 5, changed]}]


def test_data() -> None:
    same = list(data_files.judge({"a": data(), "b": data()}))
    assert [f.text for f in same] == [
        "1 files, 20.0 MiB: one copy, seen by a and b, every byte compared"
    ]
    copied = list(data_files.judge({"a": data(), "b": data(changed=8)}))
    assert "identical copies on a and b, every byte compared" in copied[0].text
    assert copied[0].level == "ok"
    # The other host cannot read the configuration, or is not there.
    for alone in ({"a": data(), "b": []}, {"a": data()}):
        (text,) = [f.text for f in data_files.judge(alone)]
        assert text == (
            "1 files, 20.0 MiB: all there on a; there is no other host's to compare them with"
        )
    stale = only(data_files.judge({"a": data(), "b": data(_2="dd"), "c": data()}), "error")
    assert stale.text == (
        "/d/x.bin: other content between bytes 16,777,216 and 20,971,520 on b, compared with a: hosts "
        "would train on different data"
    )
    assert stale.answers == "data"
    short = only(data_files.judge({"a": data(), "b": data(size=5)}), "error")
    assert "5 bytes instead of 20,971,520" in short.text
    missing = data(size=-1, problem="No such file or directory")
    assert (
        "b: /d/x.bin: No such file"
        in only(data_files.judge({"a": data(), "b": missing}), "error").text
    )
    partly = data()
    del partly[0]["blocks"]["1"]
    (sampled,) = data_files.judge({"a": data(), "b": partly})
    assert sampled.level == "warning"  # two copies, and a byte may differ in what was not read
    server = {"kind": "nfs4", "source": "server:/export", "mounted_at": "/d"}
    one_copy = {host: [file | {"system": server} for file in data()] for host in "ab"}
    del one_copy["b"][0]["blocks"]["1"]
    assert [f.level for f in data_files.judge(one_copy)] == ["ok"]
    assert "12.0 MiB (60%) of the content" in sampled.text
    assert "sha256sum /d/x.bin" in sampled.to_do


def read(rate: float, nbytes: int = 512 * MIB) -> Any:
    return {"path": "/d/x.bin", "nbytes": nbytes, "seconds": nbytes / rate, "past_cache": True}


def test_disks() -> None:
    fast = {"a": read(2e9), "b": read(1e9)}
    assert bad(reading.judge(fast, fast, loads_bytes=0)) == []
    slow = only(reading.judge({"a": read(2e9), "b": read(5e6)}, {}, loads_bytes=10**9), "warning")
    assert slow.text.startswith("b: reads /d/x.bin at 4.77 MiB/s, less than 95.4 MiB/s")
    assert "loads 954 MiB in 3m20s" in slow.text
    assert "data_local_cache_dir" in slow.to_do
    crowd = reading.judge(fast, {"a": read(2e8), "b": read(1e8)}, loads_bytes=0)
    assert "the file server is the bottleneck" in only(crowd, "warning").text
    small = list(reading.judge({"a": read(1e6, nbytes=1000)}, {}, loads_bytes=0))
    assert [f.level for f in small] == ["ok"]
    assert "too small" in small[0].text
    assert reading.turns([0, 1, 2], 6) == [0, 1, 2]
    assert reading.turns(list(range(100)), 3) == [0, 49, 99]


def link(gbit: float, latency: float = 1e-4) -> Any:
    return {"latency": latency, "up": gbit * 1.25e8, "down": gbit * 1.25e8}


def test_network() -> None:
    def judged(links: Any) -> list[Finding]:
        return list(network.judge_links(links, NEEDS, num_pairs=len(links)))

    assert bad(judged({("a", "b"): link(20)})) == []
    slow = only(judged({("a", "b"): link(0.05)}), "warning")
    assert slow.text == "a ↔ b: 0.05 Gbit/s, less than 1 Gbit/s"
    assert slow.answers == "speed"
    assert "30.00 ms" in only(judged({("a", "b"): link(20, 0.03)}), "warning").text
    four = {
        (a, b): link(20) for a, b in (("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"))
    }
    lame = four | {("c", "d"): link(2)}
    assert only(judged(lame), "warning").text.startswith("c ↔ d: less than a third of the usual 20")
    lame_host = {pair: link(2 if "d" in pair else 20) for pair in lame}
    assert only(judged(lame_host), "warning").text.startswith("all links of d: ")


def test_ports() -> None:
    labels = {0: "a", 1: "b", 2: "c"}
    fine: Any = {"a": {"closed": {}}, "b": {"closed": {}}}
    assert bad(network.judge_ports(fine, labels)) == []
    closed = fine | {"c": {"closed": {"0": "no answer", "1": "no answer"}}}
    text = only(network.judge_ports(closed, labels), "error").text
    assert text == "c cannot reach a and b at a port that the system chose: no answer"


def test_all_reduce_against_arithmetic() -> None:
    def judged(rate: float, flops: float | None) -> list[Finding]:
        facts: Any = {"nbytes": 16 * MIB, "seconds": 16 * MIB / rate, "backend": "gloo"}
        return list(network.judge_reduce({"a": facts, "b": facts}, flops, NEEDS))

    assert bad(judged(2e9, 1e14)) == []  # 1 s of reducing, 5 s of arithmetic
    assert "will be the bottleneck" in only(judged(1e8, 1e14), "warning").text
    assert bad(judged(1e8, None)) == []


def test_every_pair_measures_once() -> None:
    rounds = network.rounds([0, 1, 2, 3, 4])
    pairs = [pair for each in rounds for pair in each]
    assert sorted(pairs) == [(a, b) for a in range(5) for b in range(a + 1, 5)]
    for each in rounds:
        nodes = [node for pair in each for node in pair]
        assert len(nodes) == len(set(nodes))
    many = network.rounds(list(range(64)))
    assert [len(each) for each in many] == [32] * network.MOST_ROUNDS


def test_names() -> None:
    assert names(["a"]) == "a"
    assert names(["a", "b", "c", "d"]) == "a, b, c and d"
    assert names(list("abcdefg")) == "a, b, c and 4 more"
