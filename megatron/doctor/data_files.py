"""Do all hosts hold the same data? Sizes, the whole index, and as much of the tokens as time allows.

Blocks of a file are hashed in an order that all hosts follow, from its ends inwards, until time is up; what
two hosts have both hashed is compared. In memory or on a fast disk that is all of it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypedDict

from megatron.data.indexed_dataset import data_file_path, index_file_path
from megatron.data.sources import all_paths, label_paths_of
from megatron.data.splits import SPLIT_NAMES
from megatron.doctor.finding import ByHost, Finding, names
from megatron.monitor.units import bytes_text
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.tokenizer_files import files_read
from megatron.runtime.file_systems import FileSystem, file_system_of, is_network

BLOCK: Final = 8 * 2**20  # bytes
_THREADS: Final = 4


class DataFileFacts(TypedDict):
    """``size`` in bytes, -1 where it is missing, with why; ``blocks``: hash by number of the block.

    ``identity``: what one file has alike wherever it is seen, and a copy of it has not.
    """

    path: str
    size: int
    problem: str | None
    blocks: dict[str, str]
    identity: list[int]
    system: FileSystem


def files_of(args: NeoXArgs) -> list[str]:
    """Every file that all hosts must hold alike: small ones first, so that they are compared whole."""
    prefixes = [*all_paths(args.data)]
    for split in SPLIT_NAMES:
        prefixes += [label for label in label_paths_of(args.data, split) if label]
    prefixes = list(dict.fromkeys(prefixes))
    told = args.tokenizer
    others = files_read(told.tokenizer_type, told.vocab_file, told.merge_file)
    return [
        *(str(path) for path in others.values() if not path.is_dir()),
        *(index_file_path(prefix) for prefix in prefixes),
        *(data_file_path(prefix) for prefix in prefixes),
    ]


def look(paths: Sequence[str], seconds: float) -> list[DataFileFacts]:
    """Size and hashes of these files of this host, in no more than about ``seconds``."""
    found = [_size_of(path) for path in paths]
    deadline = time.monotonic() + seconds
    # Turn by turn, so that each of many files has its ends compared.
    tasks = [
        (turn, facts, block)
        for facts in found
        for turn, block in enumerate(order_of_blocks(facts["size"]))
    ]
    tasks.sort(key=lambda task: task[0])

    def hash_one(task: tuple[int, DataFileFacts, int]) -> None:
        _, facts, block = task
        if time.monotonic() < deadline:
            facts["blocks"][str(block)] = _hash_of(facts["path"], block)

    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(hash_one, tasks):
            pass
    return found


def order_of_blocks(size: int) -> list[int]:
    """All blocks of a file of ``size`` bytes: ends first, then ever finer between them."""
    count = -(-size // BLOCK) if size > 0 else 0
    order = dict.fromkeys([0, count - 1] if count else [])
    step = 1 << max(0, count - 1).bit_length()
    while step >= 1:
        order |= dict.fromkeys(range(step // 2 if step > 1 else 0, count, step))
        step //= 2
    return list(order)


def _size_of(path: str) -> DataFileFacts:
    size, problem, identity = -1, None, list[int]()
    try:
        found = os.stat(path)
        size, identity = found.st_size, [found.st_ino, found.st_mtime_ns, found.st_ctime_ns]
        with open(path, "rb"):
            pass
    except OSError as error:
        size, problem = -1, error.strerror
    return {
        "path": path,
        "size": size,
        "problem": problem,
        "blocks": {},
        "identity": identity,
        "system": file_system_of(path),
    }


def _hash_of(path: str, block: int) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.pread(descriptor, BLOCK, block * BLOCK)
    finally:
        os.close(descriptor)
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def judge(hosts: ByHost[Sequence[DataFileFacts]]) -> Iterator[Finding]:
    """Files that are missing somewhere, or are not the same everywhere."""
    differ = False
    for path in dict.fromkeys(facts["path"] for files in hosts.values() for facts in files):
        found = {h: f for h, files in hosts.items() for f in files if f["path"] == path}
        for finding in _judge_file(path, found):
            differ = True
            yield finding
    if not differ and any(hosts.values()):
        yield _what_was_compared(hosts)


def _judge_file(path: str, found: ByHost[DataFileFacts]) -> Iterator[Finding]:
    missing = {host: facts for host, facts in found.items() if facts["problem"] is not None}
    for host, facts in missing.items():
        yield Finding(
            "data",
            "error",
            f"{host}: {path}: {facts['problem']}",
            "mount the file system that it is on, copy it there, or mend the path in the configuration",
            "data",
        )
    there = {host: facts for host, facts in found.items() if host not in missing}
    if not there:
        return
    first, *others = there
    for host in others:
        difference = _difference(there[first], there[host])
        if difference is not None:
            yield Finding(
                "data",
                "error",
                f"{path}: {difference} on {host}, compared with {first}: hosts would train on different "
                "data",
                f"copy it again: rsync --checksum {first}:{path} {path} on {host}; sha256sum {path} on each "
                "says which is which",
                "data",
            )


def _difference(one: DataFileFacts, other: DataFileFacts) -> str | None:
    if one["size"] != other["size"]:
        return f"{other['size']:,} bytes instead of {one['size']:,}"
    both = one["blocks"].keys() & other["blocks"].keys()
    differing = sorted(
        int(block) for block in both if one["blocks"][block] != other["blocks"][block]
    )
    if not differing:
        return None
    start = differing[0] * BLOCK
    stop = min(start + BLOCK, one["size"])
    more = f" and {len(differing) - 1} more pieces" if len(differing) > 1 else ""
    return f"other content between bytes {start:,} and {stop:,}{more}"


def _what_was_compared(hosts: ByHost[Sequence[DataFileFacts]]) -> Finding:
    hosts = {host: files for host, files in hosts.items() if files}
    names_of_hosts, first = list(hosts), next(iter(hosts.values()))
    whole = sum(facts["size"] for facts in first)
    what = f"{len(first)} files, {bytes_text(whole)}"
    if len(hosts) == 1:
        text = f"{what}: all there on {names_of_hosts[0]}; there is no other host's to compare them with"
        return Finding("data", "ok", text, "", "data")
    compared = 0
    for number, facts in enumerate(first):
        each = [set(files[number]["blocks"]) for files in hosts.values() if number < len(files)]
        for block in set.intersection(*each):
            compared += min(BLOCK, facts["size"] - int(block) * BLOCK)
    copies = "one copy, seen by" if _is_one_copy(hosts) else "identical copies on"
    if compared >= whole:
        text = f"{what}: {copies} {names(names_of_hosts)}, every byte compared"
        return Finding("data", "ok", text, "", "data")
    largest = max(first, key=lambda facts: facts["size"])["path"]
    return Finding(
        "data",
        "ok" if _is_of_one_server(hosts) else "warning",
        f"{what}: {copies} {names(names_of_hosts)}, as far as time allowed: sizes, and "
        f"{bytes_text(compared)} ({compared / whole:.0%}) of the content, spread over it",
        f"to compare all of it: sha256sum {largest} on each host (and the other files)",
        "data",
    )


def _is_one_copy(hosts: ByHost[Sequence[DataFileFacts]]) -> bool:
    """Whether all hosts see the same files: one inode, changed at one time."""
    return len({tuple(tuple(f["identity"]) for f in files) for files in hosts.values()}) == 1


def _is_of_one_server(hosts: ByHost[Sequence[DataFileFacts]]) -> bool:
    """Whether all hosts read the same file of the same server, so that a part says enough."""
    for place in zip(*hosts.values(), strict=False):
        systems = [facts["system"] for facts in place]
        if not is_network(systems[0]) or len({system["source"] for system in systems}) > 1:
            return False
    return True
