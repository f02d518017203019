"""Do the hosts reach each other at any port, how fast are the links, and what does that mean for a step."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypedDict

from megatron.doctor.finding import ByHost, Finding, names
from megatron.doctor.links import LinkFacts
from megatron.doctor.needs import Needs
from megatron.monitor.units import bytes_text, duration_text

MOST_ROUNDS: Final = 8
_SLOW: Final = 125e6  # bytes a second: 1 Gbit/s
_FAR: Final = 2e-3  # seconds there and back: more than one data centre
_SHARE: Final = 1 / 3  # of the median link: below, one stands out
_WEIGHT: Final = 0.5  # share of the computing time that reducing gradients may take unnoticed


class PortFacts(TypedDict):
    """Why each node's listener cannot be reached from here, by node; those that can are left out."""

    closed: dict[str, str]


class ReduceFacts(TypedDict):
    """An all-reduce of ``nbytes`` among all hosts, one rank of each, took ``seconds`` over ``backend``."""

    nbytes: int
    seconds: float
    backend: str


def rounds(nodes: Sequence[int], most: int = MOST_ROUNDS) -> list[list[tuple[int, int]]]:
    """Pairs that measure at the same time, round by round; each pair of all nodes once.

    A tournament by the circle method: one node stays, the others move on by one each round. Of more than
    ``most`` rounds, some spread evenly: each node still meets ``most`` others.
    """
    circle: list[int | None] = [*nodes] if len(nodes) % 2 == 0 else [*nodes, None]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    if len(found) <= most:
        return found
    return [found[number * (len(found) - 1) // (most - 1)] for number in range(most)]


def judge_ports(hosts: ByHost[PortFacts], label_of: Mapping[int, str]) -> Iterator[Finding]:
    """``label_of``: the host of each node."""
    is_open = True
    for host, facts in hosts.items():
        for why in dict.fromkeys(facts["closed"].values()):
            is_open = False
            to = [label_of[int(node)] for node, each in facts["closed"].items() if each == why]
            yield Finding(
                "ports",
                "error",
                f"{host} cannot reach {names(to)} at a port that the system chose: {why}",
                "open ports 1024-65535 (net.ipv4.ip_local_port_range at least) between the hosts: gloo and "
                "NCCL listen at any of them",
                "speed",
            )
    if is_open and len(hosts) > 1:
        yield Finding(
            "ports", "ok", "master_port, and ports that the system chooses, between all hosts"
        )


def judge_links(
    links: Mapping[tuple[str, str], LinkFacts], needs: Needs | None, *, num_pairs: int
) -> Iterator[Finding]:
    """Links by their two hosts; ``num_pairs``: of how many pairs."""
    if not links:
        return
    slowest = {pair: min(link["up"], link["down"]) for pair, link in links.items()}
    median = statistics.median(slowest.values())
    pair, least = min(slowest.items(), key=lambda each: each[1])
    sampled = "" if len(links) == num_pairs else f" (measured: {len(links)} of {num_pairs} pairs)"
    needed = needs is None or needs.gradient_bytes is not None
    if least < _SLOW and needed:
        yield Finding(
            "network",
            "warning",
            f"{_between(pair)}: {_rate(least)}, less than {_rate(_SLOW)}{sampled}",
            "see whether this is the interface you mean (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, "
            "master_addr), its speed (ethtool) and who else uses it",
            "speed",
        )
    else:
        yield Finding(
            "network",
            "ok",
            f"{len(links)} link(s): {_rate(least)} at least, {_rate(median)} usual, over one TCP stream"
            f"{sampled}",
            "",
            "speed",
        )
    yield from _judge_outliers(slowest, median)
    yield from _judge_latency(links)


def _judge_outliers(slowest: Mapping[tuple[str, str], float], median: float) -> Iterator[Finding]:
    """A link much slower than the others, or a host all of whose links are."""
    slow = [pair for pair, rate in slowest.items() if rate < _SHARE * median]
    if len(slowest) < 3 or not slow:
        return
    hosts = dict.fromkeys(host for pair in slowest for host in pair)
    of_host = {host: [pair for pair in slowest if host in pair] for host in hosts}
    culprits = [host for host, pairs in of_host.items() if pairs and all(p in slow for p in pairs)]
    what = f"all links of {names(culprits)}" if culprits else names([_between(p) for p in slow])
    yield Finding(
        "network",
        "warning",
        f"{what}: less than a third of the usual {_rate(median)}",
        "look at that cable, port and interface (ethtool); exclude leaves a host out",
        "speed",
    )


def _judge_latency(links: Mapping[tuple[str, str], LinkFacts]) -> Iterator[Finding]:
    pair, link = max(links.items(), key=lambda each: each[1]["latency"])
    is_far = link["latency"] > _FAR
    text = f"{link['latency'] * 1000:.2f} ms there and back"
    yield Finding(
        "network",
        "warning" if is_far else "ok",
        f"{_between(pair)}: {text}" if is_far else f"latency: at most {text}",
        "the hosts should be in one network; see what delays packets (ping, mtr, tc qdisc show)"
        if is_far
        else "",
        "speed",
    )


def judge_reduce(
    hosts: ByHost[ReduceFacts], compute_flops: float | None, needs: Needs | None
) -> Iterator[Finding]:
    """The measured all-reduce, and what it predicts for a step.

    ``compute_flops``: floating-point operations a second of the slowest host's device; None: unknown.
    """
    if len(hosts) < 2:
        return
    slowest = max(hosts.values(), key=lambda facts: facts["seconds"])
    rate = slowest["nbytes"] / max(slowest["seconds"], 1e-6)
    text = (
        f"all-reduce of {bytes_text(slowest['nbytes'])} over {slowest['backend']}: "
        f"{duration_text(slowest['seconds'])}"
    )
    if needs is None or needs.gradient_bytes is None:
        yield Finding("network", "ok", text, "", "speed")
        return
    # The ranks of a host share its link, and with it what each of them gets.
    reducing = needs.gradient_bytes / rate
    size = bytes_text(needs.gradient_bytes)
    text += f"; the gradients of a step ({size} a rank): about {duration_text(reducing)}"
    if compute_flops is None or needs.step_flops is None:
        yield Finding("network", "ok", text, "", "speed")
        return
    computing = needs.step_flops / (compute_flops * len(hosts))
    text += f", its arithmetic at least {duration_text(computing)}"
    if reducing > _WEIGHT * computing and reducing > 0.1:
        yield Finding(
            "network",
            "warning",
            f"{text}: the network will be the bottleneck",
            "raise gradient_accumulation_steps or the micro-batch, keep model and pipeline ranks within a "
            "host, or use a faster network",
            "speed",
        )
    else:
        yield Finding("network", "ok", text, "", "speed")


def _rate(found: float) -> str:
    return f"{found * 8 / 1e9:.3g} Gbit/s"


def _between(pair: tuple[str, str]) -> str:
    return f"{pair[0]} ↔ {pair[1]}"
