"""Which file system a path is on, and which are surely one host's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron.runtime.file_systems import file_system_of, is_of_one_host

TABLE = """\
21 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw
22 21 0:50 / /net rw shared:9 - nfs4 server:/net rw
23 22 0:51 / /net/scratch rw - xfs /dev/sdb rw
24 21 0:52 / /auto rw - autofs systemd-1 rw
25 21 0:53 / /fuse rw - fuse.something none rw
"""


def test_mounts(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "21 1 8:1 / / rw - ext4 /dev/sda rw\n"
        "22 21 0:40 / /data rw shared:1 - nfs4 server:/export rw\n"
        "23 21 0:41 / /data\\040two rw - tmpfs none rw\n"
    )
    assert file_system_of("/data/x", table)["source"] == "server:/export"
    assert file_system_of("/data two/x", table)["kind"] == "tmpfs"
    assert file_system_of("/database", table)["kind"] == "ext4"


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        ("/data/x", True),
        ("/network", True),
        ("/net/data", False),
        ("/net/scratch/x", True),
        ("/auto/x", False),
        ("/fuse/x", False),
    ],
)
def test_what_only_one_host_writes(tmp_path: Path, path: str, is_own: bool) -> None:
    (tmp_path / "mountinfo").write_text(TABLE)
    assert is_of_one_host(path, tmp_path / "mountinfo") == is_own


def test_where_nobody_says_nothing_is_sure(tmp_path: Path) -> None:
    assert not is_of_one_host("/", tmp_path / "missing")
