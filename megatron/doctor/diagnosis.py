"""From the facts of all hosts to findings. Pure: what each topic says, and what could not be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
from megatron.doctor.finding import Finding
from megatron.doctor.isolation import failure_of
from megatron.doctor.needs import Needs
from megatron.doctor.visit import Facts

# The block of the page in which a topic's failures stand.
_BLOCKS = {
    "clocks": "hosts",
    "read alone": "disks",
    "read together": "disks",
    "links": "network",
    "reduce": "network",
}


@dataclass(frozen=True)
class Case:
    """What judging needs beside the facts.

    Attributes:
        labels: a name for each node that came.
        needs: of the run; None where the configuration cannot say.
        folders: that the run writes to, by key.
        absent: why a node is not there, by its name.
    """

    labels: Mapping[int, str]
    needs: Needs | None = None
    folders: Mapping[str, folders.RunFolder] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)


def labels_of(names: Mapping[int, str]) -> dict[int, str]:
    """A label for each node: its name, with its number where two have the same."""
    taken = list(names.values())
    return {
        node: name if taken.count(name) == 1 else f"{name} (node {node})"
        for node, name in sorted(names.items())
    }


def diagnose(facts: Facts, case: Case) -> list[Finding]:
    """All findings, topic by topic."""
    found = [
        Finding(
            "hosts",
            "error",
            f"{name}: {why}",
            "see what its probe says on the terminal or in the job's log; open master_port between the hosts",
        )
        for name, why in case.absent.items()
    ]
    for topic in facts:
        found += _failures(topic, facts[topic], case)
    for topic, judge in _judges(facts, case).items():
        try:
            found += judge()
        except Exception as error:  # noqa: BLE001 - facts of another version of the doctor, for one
            what = f"could not be judged: {type(error).__name__}: {error}"
            found.append(Finding(_BLOCKS.get(topic, topic), "warning", f"{topic}: {what}"))
    return found


def _judges(facts: Facts, case: Case) -> dict[str, Callable[[], Iterable[Finding]]]:
    """What each topic's facts say, for the topics of which there are facts."""
    by = {topic: _by_host(found, case) for topic, found in facts.items() if topic != "links"}
    needs = case.needs
    loads = needs.held_tokens_bytes if needs is not None else 0
    judges: dict[str, Callable[[], Iterable[Finding]]] = {
        "hosts": lambda: hosts.judge(by["hosts"]),
        "clocks": lambda: hosts.judge_clocks(by["clocks"]),
        "versions": lambda: versions.judge(by["versions"]),
        "devices": lambda: devices.judge(by["devices"], needs),
        "limits": lambda: limits.judge(by["limits"], needs),
        "folders": lambda: folders.judge(by["folders"], needs, case.folders),
        "sharing": lambda: _sharing(by["sharing"], case),
        "data": lambda: data_files.judge(by["data"]),
        "read alone": lambda: reading.judge(
            by["read alone"], by.get("read together", {}), loads_bytes=loads
        ),
        "ports": lambda: network.judge_ports(by["ports"], case.labels),
        "links": lambda: _links(facts["links"], case),
        "reduce": lambda: network.judge_reduce(by["reduce"], compute_flops(by, needs), needs),
    }
    return {
        topic: judge
        for topic, judge in judges.items()
        if facts.get(topic) and (topic == "links" or by[topic])
    }


def compute_flops(by: Mapping[str, Mapping[str, Any]], needs: Needs | None) -> float | None:
    """Floating-point operations a second of the slowest host, with all of its ranks."""
    found = [facts for facts in by.get("devices", {}).values() if facts["flops"]]
    if not found or needs is None:
        return None
    return min(
        float(facts["flops"]) * (needs.ranks_per_host if facts["devices"] else 1) for facts in found
    )


def _by_host(found: Mapping[int, Any], case: Case) -> dict[str, Any]:
    return {
        case.labels[node]: facts
        for node, facts in sorted(found.items())
        if node in case.labels and facts is not None and failure_of(facts) is None
    }


def _failures(topic: str, found: Mapping[int, Any], case: Case) -> Iterable[Finding]:
    """What could not be looked at, and hosts that have stopped answering."""
    block = _BLOCKS.get(topic, topic)
    if topic == "links":
        failed = {
            f"{case.labels[each['from']]} ↔ {case.labels[int(other)]}": why
            for each in found.values()
            for other, link in each["to"].items()
            if (why := failure_of(link))
        }
    else:
        failed = {case.labels[n]: why for n, facts in found.items() if (why := failure_of(facts))}
    # One cause makes a collective fail everywhere.
    words = {why: [who for who, each in failed.items() if each == why] for why in failed.values()}
    for why, who in words.items():
        yield Finding(
            block,
            "error" if topic in ("reduce", "data", "versions") else "warning",
            f"{', '.join(who)}: {_WHAT.get(topic, topic)}: {why}",
            _TO_DO.get(topic, "see that host"),
            "speed" if block in ("network", "disks") else None,
        )
    if topic not in ("links", "read alone", "clocks"):
        for node in case.labels.keys() - found.keys():
            yield Finding(
                block, "error", f"{case.labels[node]}: stopped answering here", "see that host"
            )


_WHAT = {"reduce": "an all-reduce failed", "devices": "devices", "links": "no measurement"}
_TO_DO = {
    "reduce": "the ranks will fail like this: set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to the interface "
    "between the hosts, open all ports between them; NCCL_DEBUG=INFO says more",
    "devices": "see the driver (nvidia-smi) and the installation (python -c 'import torch')",
}


def _sharing(by_host: Mapping[str, Any], case: Case) -> Iterable[Finding]:
    nodes = {label: node for node, label in case.labels.items()}
    for key, folder in case.folders.items():
        found = {host: facts[key] for host, facts in by_host.items() if key in facts}
        if found:
            yield from sharing.judge(key, folder, found, nodes)


def _links(found: Mapping[int, Any], case: Case) -> Iterable[Finding]:
    measured = {
        (case.labels[each["from"]], case.labels[int(other)]): link
        for each in found.values()
        for other, link in each["to"].items()
        if failure_of(link) is None
    }
    pairs = len(case.labels) * (len(case.labels) - 1) // 2
    return network.judge_links(measured, case.needs, num_pairs=pairs)
