"""Mapped files: read-only, without a descriptor, and no longer counted than wanted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megatron.data.mapping import leave_to_page_cache, map_file

SIZE = 16 * 1024 * 1024


def resident_file_pages() -> int:
    """Bytes of mapped files that are resident in this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssFile:")[1].split()[0]) * 1024


def test_pages_are_given_back_and_read_again(tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    content.tofile(tmp_path / "file")
    mapped = map_file(tmp_path / "file")
    before = resident_file_pages()
    assert int(mapped.sum()) == int(content.sum())
    assert resident_file_pages() - before > SIZE // 2
    leave_to_page_cache(mapped[5:-7])
    assert resident_file_pages() - before < SIZE // 2
    assert np.array_equal(mapped, content)


def test_an_empty_file_is_an_empty_array(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    mapped = map_file(tmp_path / "file")
    assert mapped.shape == (0,)
    leave_to_page_cache(mapped)


def test_nobody_writes_through_a_map(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    mapped = map_file(tmp_path / "file")
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        mapped.flags.writeable = True
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "none")
