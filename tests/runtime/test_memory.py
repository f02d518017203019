"""Memory that may be filled: of the machine, and of the control groups around a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron.runtime.memory import _control_group_rooms, available_memory

VERSIONS = {
    "0::/job/step": ("job", ("memory.max", "memory.current", "inactive_file")),
    "7:cpu,memory:/job/step": (
        "memory/job",
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ),
}


@pytest.mark.parametrize("line", VERSIONS)
def test_a_container_has_less_memory_than_its_machine(tmp_path: Path, line: str) -> None:
    folder, (limit, used, cache) = VERSIONS[line]
    group, own = tmp_path / folder, tmp_path / "cgroup"
    own.write_text(f"1:pids:/other\n{line}\n")
    group.mkdir(parents=True)
    assert _control_group_rooms(tmp_path, own) == []
    (group / limit).write_text("1000\n")
    (group / used).write_text("700\n")
    (group / "memory.stat").write_text(f"anon 500\n{cache} 200\n")
    assert _control_group_rooms(tmp_path, own) == [500]
    if limit == "memory.max":
        (group / limit).write_text("max\n")
        assert _control_group_rooms(tmp_path, own) == []


def test_this_machine_has_some() -> None:
    assert available_memory() > 2**20
