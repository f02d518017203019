"""How fast the token files are read: by each host alone, one after another, and by all together."""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import Final, TypedDict

from megatron.data.indexed_dataset import data_file_path
from megatron.data.sources import all_paths
from megatron.doctor.finding import ByHost, Finding
from megatron.monitor.units import bytes_text, duration_text
from megatron.neox_arguments import NeoXArgs

_PIECE: Final = 4 * 2**20  # bytes
_MOST: Final = 512 * 2**20  # bytes that one look reads
# Less than this, read sooner than that, says nothing about a disk.
_TELLING_BYTES: Final = 16 * 2**20
_TELLING_SECONDS: Final = 0.3
_SLOW: Final = 100e6  # bytes a second: less than one spinning disk gives
_SHARE: Final = 0.3  # of its speed alone: below, hosts stand in each other's way
_LONG_LOADING: Final = 600.0  # seconds


class ReadingFacts(TypedDict):
    """Bytes read from ``path``, in how many seconds; ``past_cache``: from the disk itself."""

    path: str
    nbytes: int
    seconds: float
    past_cache: bool


def largest_file(args: NeoXArgs) -> str | None:
    """The token file to read; None where none is named or there."""
    paths = [data_file_path(prefix) for prefix in all_paths(args.data)]
    there = [path for path in paths if os.path.isfile(path)]
    return max(there, key=os.path.getsize) if there else None


def look(path: str, seconds: float, seed: int) -> ReadingFacts:
    """Read pieces of ``path`` for about ``seconds``, each once, in an order of ``seed``'s own.

    Another order on each host, or the second one would read what a file server has just read.
    """
    size = os.path.getsize(path)
    pieces = list(range(0, size, _PIECE))
    random.Random(seed).shuffle(pieces)
    nbytes, start = 0, time.monotonic()
    with _FileOfDisk(path) as file:
        for first in pieces:
            nbytes += file.read(first)
            if time.monotonic() - start > seconds or nbytes >= _MOST:
                break
        passed = time.monotonic() - start
    return {"path": path, "nbytes": nbytes, "seconds": passed, "past_cache": file.past_cache}


class _FileOfDisk:
    """A file read past the page cache where its file system can (``O_DIRECT``), else after asking the kernel
    to forget what it has of it, which it may do in part."""

    def __init__(self, path: str) -> None:
        # O_DIRECT wants memory at a multiple of the disk's block: a mapping begins at one of a page.
        self._buffer = mmap.mmap(-1, _PIECE)
        self.past_cache = True
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            os.preadv(self._descriptor, [self._buffer], 0)
        except OSError:
            self.past_cache = False
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, first: int) -> int:
        """Bytes that were read from byte ``first`` on."""
        return os.preadv(self._descriptor, [self._buffer], first)

    def __enter__(self) -> _FileOfDisk:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        self._buffer.close()


def speed(facts: ReadingFacts) -> float | None:
    """Bytes a second; None where too little was read to tell."""
    if facts["nbytes"] < _TELLING_BYTES and facts["seconds"] < _TELLING_SECONDS:
        return None
    return facts["nbytes"] / max(facts["seconds"], 1e-6)


def judge(
    alone: ByHost[ReadingFacts], together: ByHost[ReadingFacts], *, loads_bytes: int
) -> Iterator[Finding]:
    """Slow disks; ``loads_bytes``: what each host reads before the first step (``data_impl: cached``)."""
    quick = [facts for facts in alone.values() if speed(facts) is None]
    slow = False
    for host, facts in alone.items():
        found = speed(facts)
        if found is not None and found < _SLOW:
            slow = True
            yield Finding(
                "disks",
                "warning",
                f"{host}: reads {facts['path']} at {_rate(found)}, less than {_rate(_SLOW)}"
                + _loading(loads_bytes, found),
                "put the data on a faster disk, or copy it once to one of each host's own: "
                "data_local_cache_dir",
                "speed",
            )
    speeds = {host: found for host, f in alone.items() if (found := speed(f)) is not None}
    if not slow and speeds:
        cached = "" if all(f["past_cache"] for f in alone.values()) else ", the page cache helping"
        least = min(speeds.values())
        long = loads_bytes / least > _LONG_LOADING
        yield Finding(
            "disks",
            "warning" if long else "ok",
            f"each host reads the data at {_rate(least)} or more alone{cached}"
            + _loading(loads_bytes, least),
            "data_impl: mmap starts at once" if long else "",
            "speed",
        )
    elif not slow and quick:
        yield Finding(
            "disks",
            "ok",
            f"{quick[0]['path']}: read within {duration_text(max(f['seconds'] for f in quick))}; too small "
            "to tell a speed from",
            "",
            "speed",
        )
    yield from _judge_together(speeds, together)


def _judge_together(alone: ByHost[float], together: ByHost[ReadingFacts]) -> Iterator[Finding]:
    both = {h: found for h, f in together.items() if h in alone and (found := speed(f)) is not None}
    if len(both) < 2:
        return
    host, least = min(both.items(), key=lambda each: each[1] / alone[each[0]])
    text = f"all at once: {_rate(least)} on {host}, {_rate(sum(both.values()))} together"
    if least < _SHARE * alone[host] and least < 5 * _SLOW:
        yield Finding(
            "disks",
            "warning",
            f"{text}; alone it reads at {_rate(alone[host])}: the file server is the bottleneck",
            "data_local_cache_dir: a folder on each host's own disk, to read from the server once",
            "speed",
        )
    else:
        yield Finding("disks", "ok", text, "", "speed")


def _rate(found: float) -> str:
    return f"{bytes_text(found)}/s"


def _loading(nbytes: int, found: float) -> str:
    return (
        f"; data_impl: cached loads {bytes_text(nbytes)} in {duration_text(nbytes / found)}"
        if nbytes
        else ""
    )


def turns(hosts: Sequence[int], most: int) -> list[int]:
    """The nodes that read alone, one after another: all, or ``most`` spread evenly over them."""
    if len(hosts) <= most:
        return list(hosts)
    return [hosts[number * (len(hosts) - 1) // (most - 1)] for number in range(most)]
