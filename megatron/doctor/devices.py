"""The devices of a host and their memory, and whether the model fits. Asked of a process of its own: a
driver may hang, and torch takes seconds to import, in which the probe does other things."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypedDict

from megatron.doctor.finding import ByHost, Finding, groups, names
from megatron.doctor.needs import Needs
from megatron.monitor.units import bytes_text

_TIGHT: Final = 0.9  # of the memory: what the libraries take is not in the estimate
_HALF_FULL: Final = 0.9  # of a device's memory that should be free before a run


class Device(TypedDict):
    """Memory in bytes."""

    name: str
    total: int
    free: int


class DeviceFacts(TypedDict):
    """``flops``: of a matrix product, a second, on one device or the whole CPU; ``memory``: of the host, that
    may still be filled, in bytes."""

    devices: list[Device]
    memory: int
    flops: float | None
    backend: str


def judge(hosts: ByHost[DeviceFacts], needs: Needs | None) -> Iterator[Finding]:
    """Devices that differ or are in use, and memory that will not do."""
    shown = {host: _text_of(facts["devices"]) for host, facts in hosts.items()}
    if len(groups(shown)) > 1:
        yield Finding(
            "devices",
            "warning",
            "; ".join(f"{text} on {names(which)}" for text, which in groups(shown).items()),
            "the slowest host sets the pace: leave others out (include, exclude), or say num_gpus",
        )
    else:
        yield Finding("devices", "ok", f"{next(iter(shown.values()))} on each host")
    for host, facts in hosts.items():
        used = [d for d in facts["devices"] if d["free"] < _HALF_FULL * d["total"]]
        if used:
            yield Finding(
                "devices",
                "warning",
                f"{host}: {len(used)} device(s) are in use: {bytes_text(min(d['free'] for d in used))} of "
                f"{bytes_text(used[0]['total'])} free",
                "see who uses it (nvidia-smi)",
                "memory",
            )
    if needs is not None:
        yield from _judge_ranks(hosts, needs)
        yield from _judge_device_memory(hosts, needs)
        yield from _judge_host_memory(hosts, needs)


def _judge_ranks(hosts: ByHost[DeviceFacts], needs: Needs) -> Iterator[Finding]:
    for host, facts in hosts.items():
        if facts["devices"] and len(facts["devices"]) < needs.ranks_per_host:
            yield Finding(
                "devices",
                "error",
                f"{host}: {len(facts['devices'])} devices for {needs.ranks_per_host} ranks",
                "lower num_gpus, or make all devices visible (CUDA_VISIBLE_DEVICES; Slurm: --gpus-per-node)",
            )


def _judge_device_memory(hosts: ByHost[DeviceFacts], needs: Needs) -> Iterator[Finding]:
    totals = {h: min(d["total"] for d in f["devices"]) for h, f in hosts.items() if f["devices"]}
    if not totals or needs.device_bytes is None:
        return
    host, least = min(totals.items(), key=lambda each: each[1])
    share = needs.device_bytes / least
    yield Finding(
        "devices",
        "error" if share > 1 else "warning" if share > _TIGHT else "ok",
        f"a rank needs about {bytes_text(needs.device_bytes)} of {bytes_text(least)} ({host})",
        "checkpoint_activations: true, a smaller train_micro_batch_size_per_gpu, a higher zero stage, or "
        "more model_parallel_size; ./deepy.py --check shows the parts"
        if share > _TIGHT
        else "",
        "memory",
    )


def _judge_host_memory(hosts: ByHost[DeviceFacts], needs: Needs) -> Iterator[Finding]:
    host, least = min(
        ((host, facts["memory"]) for host, facts in hosts.items()), key=lambda each: each[1]
    )
    share = needs.host_bytes / max(1, least)
    held = needs.held_tokens_bytes
    of_it = f", {bytes_text(held)} of it tokens (data_impl: cached)" if held else ""
    yield Finding(
        "devices",
        "error" if share > 1 else "warning" if share > _TIGHT else "ok",
        f"the processes of a host need about {bytes_text(needs.host_bytes)} of its memory{of_it}; "
        f"{bytes_text(least)} available ({host})",
        ("data_impl: mmap, " if held else "")
        + "fewer num_workers, a smaller batch, less offloading, or fewer ranks a host (num_gpus)"
        if share > _TIGHT
        else "",
        "memory",
    )


def _text_of(devices: list[Device]) -> str:
    if not devices:
        return "no GPU"
    kinds = groups({str(n): (d["name"], d["total"]) for n, d in enumerate(devices)})
    return ", ".join(
        f"{len(which)} × {name} of {bytes_text(total)}" for (name, total), which in kinds.items()
    )
