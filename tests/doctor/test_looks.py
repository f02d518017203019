"""What the doctor finds on this machine, in files and folders made for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from megatron.doctor import channel as channel_file
from megatron.doctor import data_files, folders, links, reading, sharing, versions
from megatron.doctor.channel import Channel, Gone
from megatron.doctor.diagnosis import Case, diagnose, labels_of
from megatron.doctor.finding import Finding
from megatron.doctor.isolation import failure_of, isolated
from megatron.doctor.meeting import Guest, Hub
from megatron.doctor.page import page, status_of, verdict
from megatron.doctor.probe import absent_hosts
from megatron.doctor.torch_process import TorchProcess
from megatron.errors import LaunchError
from tests.doctor.findings import only
from tests.support.doors import ROOT
from tests.support.ranks import free_port


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "BLOCK", 100)


@pytest.mark.usefixtures("small_blocks")
def test_one_byte_that_differs_is_found(tmp_path: Path) -> None:
    content = os.urandom(1950)
    one, other = tmp_path / "a", tmp_path / "b"
    one.write_bytes(content)
    other.write_bytes(content[:1234] + bytes([content[1234] ^ 1]) + content[1235:])
    facts = [data_files.look([str(path)], 5.0) for path in (one, other)]
    for found in facts:
        found[0]["path"] = "/d/x.bin"
    text = only(data_files.judge({"a": facts[0], "b": facts[1]}), "error").text
    assert "between bytes 1,200 and 1,300 on b" in text


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 100])
def test_all_blocks_have_their_turn(count: int) -> None:
    order = data_files.order_of_blocks(count * data_files.BLOCK)
    assert sorted(order) == list(range(count))
    assert order[:2] == [0, count - 1][: len(order)] or count <= 1


def test_without_time_nothing_is_hashed_and_sizes_are_known(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    there, missing = data_files.look([str(tmp_path / "a"), str(tmp_path / "b")], -1.0)
    assert (there["size"], there["blocks"]) == (3, {})
    assert missing["problem"] == "No such file or directory"


def test_a_folder_is_looked_at_and_left_as_it_was(tmp_path: Path) -> None:
    (facts,) = folders.look({"save": folders.RunFolder(str(tmp_path / "not" / "yet"))})
    assert (facts["place"], facts["problem"]) == (str(tmp_path), None)
    assert facts["free"] > 0
    assert list(tmp_path.iterdir()) == []
    (closed,) = folders.look({"save": folders.RunFolder("/proc/self")})
    assert closed["problem"] is not None


def test_a_file_of_another_host_is_seen_when_it_comes(tmp_path: Path) -> None:
    ours = {
        "save": folders.RunFolder(str(tmp_path), shared=False),
        "log_dir": folders.RunFolder(str(tmp_path)),  # each may write to one of its own
    }
    left = {0: sharing.leave(ours), 1: {"save": "never"}, 2: sharing.leave(ours), 3: {"save": None}}
    assert left[0].keys() == {"save"}
    facts = sharing.look(ours, left, 0)["save"]
    assert (facts["writes"], list(facts["seen"])) == (True, ["2"])
    assert sharing.look(ours, left, 3)["save"]["writes"] is False
    for node in left:
        sharing.take_away(ours, left[node])
    assert list(tmp_path.iterdir()) == []


def test_reading_takes_pieces_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(9_000_000))
    facts = reading.look(str(path), 5.0, seed=0)
    assert facts["nbytes"] == 9_000_000


def test_a_check_that_raises_or_hangs_is_a_fact() -> None:
    def raises() -> None:
        raise OSError("disk on fire")

    assert failure_of(isolated(raises, 1.0)) == "OSError: disk on fire"
    assert failure_of(isolated(threading.Event().wait, 0.1)) == "no answer within 0 s"
    assert isolated(lambda: {"size": 3}, 1.0) == {"size": 3}


def test_what_torchs_process_said_last_is_the_reason_for_all_that_it_does_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcuda.so.1 is broken')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    process = TorchProcess()
    for question in (None, {"rank": 0}, {"rank": 0}):
        with pytest.raises(RuntimeError, match="is broken"):
            process.ask(question, 30.0)


def test_another_version_of_a_file_is_another_project(tmp_path: Path) -> None:
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron" / "a.py").write_text("x = 1\n")
    before = versions.project_hash(tmp_path)
    (tmp_path / "a_users_own.py").touch()
    assert versions.project_hash(tmp_path) == before
    (tmp_path / "train.py").touch()
    with_door = versions.project_hash(tmp_path)
    (tmp_path / "megatron" / "a.py").write_text("x = 2\n")
    assert len({before, with_door, versions.project_hash(tmp_path)}) == 3


def test_a_link_over_loopback() -> None:
    listener = links.Listener()
    assert links.reach("127.0.0.1", listener.port, 2.0) is None
    facts = links.measure("127.0.0.1", listener.port, 0.1)
    assert facts["latency"] < 1.0
    assert min(facts["up"], facts["down"]) > 1e6
    assert links.reach("127.0.0.1", free_port(), 2.0) == "Connection refused"


def test_the_hub_goes_on_without_a_host_that_falls_silent() -> None:
    port = free_port()
    said: list[object] = []

    def guest() -> None:
        meeting = Guest("127.0.0.1", port, 1)
        said.append(meeting.exchange("one", "g", 5.0))
        meeting.clocks()

    thread = threading.Thread(target=guest)
    thread.start()
    hub = Hub(port, 2)
    assert hub.exchange("one", "h", 5.0) == {0: "h", 1: "g"}
    clocks = hub.clocks()
    thread.join()
    assert said == [{0: "h", 1: "g"}]
    assert abs(clocks[1]) < 0.5
    assert hub.exchange("two", "h", 0.2) == {0: "h"}


def test_a_host_that_gave_and_then_ended_takes_nobodys_place() -> None:
    port = free_port()

    def guest(node: int, seconds: float) -> None:
        meeting = Guest("127.0.0.1", port, node)
        time.sleep(seconds)
        if node == 1:
            meeting._hub.send(step="one", value="g1")
            meeting._hub.close()
        else:
            meeting.exchange("one", f"g{node}", 5.0)
            meeting.clocks()

    threads = [
        threading.Thread(target=guest, args=(node, seconds))
        for node, seconds in ((1, 0.0), (2, 0.2), (3, 0.6))
    ]
    for thread in threads:
        thread.start()
    hub = Hub(port, 4)
    assert hub.exchange("one", "h", 10.0) == {0: "h", 1: "g1", 2: "g2", 3: "g3"}
    assert hub.clocks().keys() == {0, 2, 3}
    for thread in threads:
        thread.join()


def test_a_host_that_ends_while_clocks_are_asked_is_left_out() -> None:
    port = free_port()

    def guest() -> None:
        meeting = Guest("127.0.0.1", port, 1)
        meeting._hub.receive(5.0)
        meeting._hub.close()

    thread = threading.Thread(target=guest)
    thread.start()
    assert Hub(port, 2).clocks() == {0: 0.0}
    thread.join()


def test_messages_in_pieces_many_at_once_and_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        one = socket.create_connection(door.getsockname())
        channel = Channel(door.accept()[0])
    one.sendall(b'{"a": 1}\n{"b": 2}\n{"c"')
    assert [channel.receive(5.0), channel.receive(5.0)] == [{"a": 1}, {"b": 2}]
    with pytest.raises(Gone, match="did not answer in time"):
        channel.receive(0.05)
    one.sendall(b": 3}\n")
    assert channel.receive(5.0) == {"c": 3}
    one.sendall(b"GET / HTTP/1.1\n")
    with pytest.raises(Gone, match="another language"):
        channel.receive(5.0)
    one.close()
    with pytest.raises(Gone):
        channel.receive(5.0)
    channel.close()


def test_an_end_that_takes_nothing_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_file, "_SEND_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as door:
        one = socket.create_connection(door.getsockname())
        channel = Channel(door.accept()[0])
    with pytest.raises(Gone, match="does not listen"):
        channel.send(much="x" * 20_000_000)
    channel.close()
    one.close()


def test_who_cannot_reach_node_0_says_so() -> None:
    with pytest.raises(LaunchError, match=r"\(node 1\) cannot reach node 0 at 127.0.0.1:\d+: Conn"):
        Guest("127.0.0.1", free_port(), 1, patience=0.5)


def test_strangers_at_the_door_are_not_let_in() -> None:
    port = free_port()

    def stranger() -> None:
        time.sleep(0.1)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")

    thread = threading.Thread(target=stranger)
    thread.start()
    assert Hub(port, 2, patience=0.5).hosts == {}
    thread.join()


def test_the_process_with_torch_ends_with_its_probe() -> None:
    """Killed while that still imports torch."""
    code = (
        "import time; from megatron.doctor.torch_process import TorchProcess;"
        "print(TorchProcess()._process.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdout is not None
        child = Path("/proc", probe.stdout.readline().strip())
        probe.kill()
    time.sleep(0.2)
    state = (child / "stat").read_text().rpartition(")")[2].split()[0] if child.exists() else "Z"
    assert state == "Z"


def test_absent_hosts_have_their_names() -> None:
    env = {"NEOX_HOSTS": "a,b,c", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    absent = absent_hosts(env, 4, {0: "a", 2: "c"})
    assert list(absent) == ["b (node 1)", "node 3"]
    assert "port 29500 of a" in absent["b (node 1)"]
    assert labels_of({0: "a", 1: "b", 2: "a"}) == {0: "a (node 0)", 1: "b", 2: "a (node 2)"}


def test_a_host_without_token_files_has_not_stopped() -> None:
    here: Any = {"path": "d.bin", "nbytes": 1, "seconds": 0.1, "past_cache": True}
    facts = {"read alone": {0: here}, "read together": {0: here, 1: None}}
    findings = diagnose(facts, Case(labels={0: "a", 1: "b"}))
    assert [finding.level for finding in findings] == ["ok"]
    gone = diagnose(facts | {"read together": {0: here}}, Case(labels={0: "a", 1: "b"}))
    assert "b: stopped answering here" in [finding.text for finding in gone]


def test_of_one_host_nothing_is_called_the_same() -> None:
    data = [Finding("data", "ok", "2 files: all there on a", "", "data")]
    assert "data: there (one host: nothing to compare with)" in page("doctor", data, 1.0, 1)
    assert "data: the same," in page("doctor", data, 1.0, 2)


def test_failures_and_absences_become_findings() -> None:
    facts = {
        "clocks": {0: 0.0},
        "data": {0: [], 1: {"failed": "no answer within 16 s"}},
        "limits": {0: {"of": "another version"}},
    }
    case = Case(labels={0: "a", 1: "b"}, absent={"c (node 2)": "not there"})
    findings = diagnose(facts, case)
    texts = {finding.text: finding.level for finding in findings}
    assert texts["c (node 2): not there"] == "error"
    assert texts["b: data: no answer within 16 s"] == "error"
    assert texts["b: stopped answering here"] == "error"
    assert any("limits: could not be judged" in text for text in texts)
    assert status_of(findings) == 2
    assert verdict(findings)["data"] in ("unknown", "error")
    last = page("doctor", findings, 3.0, 2).splitlines()[-1]
    assert last.startswith("0 ok, 1 warnings, 3 errors in 3.00 s; data: ")
