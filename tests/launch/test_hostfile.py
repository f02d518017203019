"""Hostfiles: what a line may be, and what is said of one that is none."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from megatron.errors import LaunchError
from megatron.launch.hostfile import Host, read_hostfile
from megatron.launch.machine import is_this_host


def test_names_slots_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# the rack\nnode1 slots=8\n\nnode2   slots = 4  # half of it\nnode3\n")
    assert read_hostfile(str(path)) == [Host("node1", 8), Host("node2", 4), Host("node3", None)]


def test_a_file_from_windows(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes("node1 slots=8\r\nnode2\r\n".encode("utf-8-sig"))
    assert read_hostfile(str(path)) == [Host("node1", 8), Host("node2", None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node1 slots=8\nnode1 slots=4\n", ":2: node1 stands on line 1 already"),
        ("node1 slots=0\n", ":1: slots=0: expected a whole number from 1 on"),
        ("node1 slots=many\n", ":1: slots=many: expected a whole number from 1 on"),
        ("\nnode1 8\n", ":2: found 'node1 8', expected a line such as 'node1 slots=8'"),
        ("node1:8\n", ":1: found 'node1:8', expected a line such as 'node1 slots=8'"),
        ("n[1-4] slots=8\n", ":1: found 'n[1-4] slots=8', expected a line such as 'node1 slots=8'"),
        ("n1,n2 slots=8\n", ":1: found 'n1,n2 slots=8', expected a line such as 'node1 slots=8'"),
        ("node1 slots=²\n", ":1: slots=²: expected a whole number from 1 on"),
        ("# nobody\n", " names no host: expected lines such as 'node1 slots=8'"),
    ],
)
def test_bad_lines(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(LaunchError) as error:
        read_hostfile(str(path))
    assert str(error.value).endswith(f"{path}{message}")


def test_a_missing_file_stops(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="cannot be read: No such file or directory"):
        read_hostfile(str(tmp_path / "none"))


def test_which_names_mean_this_host() -> None:
    assert is_this_host("localhost")
    assert is_this_host("someone@" + socket.gethostname())
    assert is_this_host("127.0.0.1")
    assert not is_this_host("192.0.2.1")  # of a net that is for documents only
