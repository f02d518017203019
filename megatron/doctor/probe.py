"""One host's probe: ``python -m megatron.doctor.probe [--json] --config-file config.yml``, once a host.

Reads the variables that a rank reads (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), so that
whatever starts ranks starts probes; of several on a host the first one works. Node 0's shows the page.
``NEOX_HOSTS``, names by node with commas between, lets it name a host that never came;
``NEOX_RANKS_PER_HOST`` says how many ranks a host is to have. The status is 2 with errors, else 0.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from megatron.doctor import folders
from megatron.doctor.agreed_port import agreed_port
from megatron.doctor.channel import Gone
from megatron.doctor.diagnosis import Case, diagnose, labels_of
from megatron.doctor.finding import Finding
from megatron.doctor.isolation import failure_of, isolated
from megatron.doctor.main import RANKS_VARIABLE
from megatron.doctor.meeting import PATIENCE, Guest, Hub, Meeting
from megatron.doctor.needs import Needs, needs_of
from megatron.doctor.page import as_json, page, status_of
from megatron.doctor.torch_process import TorchProcess
from megatron.doctor.visit import Facts, Visit
from megatron.errors import ConfigError, LaunchError, NeoXError, run_door
from megatron.launch.load_facts import load_facts
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.arguments_cli import add_config_arguments, overrides_from_cli
from megatron.ranks import adopt_rank_variables, named_hosts
from megatron.runtime.parent import end_with_launcher
from megatron.runtime.silence import say_no_more
from megatron.runtime.world import World

# Seconds that looking at `load` may take: it imports DeepSpeed, for which a cold disk takes its time.
_PATIENCE = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Probe this host and, as node 0, show what all have found.

    Raises:
        LaunchError: the hosts cannot meet.
    """
    start = time.monotonic()
    adopt_rank_variables()
    end_with_launcher()
    parser = argparse.ArgumentParser(prog="python -m megatron.doctor.probe", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the page")
    add_config_arguments(parser)
    parsed = parser.parse_args(argv)
    world = World.from_env()
    if not world.is_local_first:
        return 0
    torch_process = TorchProcess()
    try:
        args, problem = _configuration(parsed)
        meeting = _meet(world)
        facts = Visit(meeting, args, problem, torch_process).all_steps()
    except Gone as gone:
        raise LaunchError(f"node {world.node_rank}: node 0's probe has ended: {gone}") from None
    finally:
        torch_process.end()
    if not isinstance(meeting, Hub):
        return 0
    findings, case = _judge(facts, meeting, world, args)
    seconds = time.monotonic() - start
    labels = list(case.labels.values())
    if parsed.json:
        shown = as_json(labels, _by_label(facts, case.labels), findings, seconds)
    else:
        files = ", ".join(parsed.config + parsed.config_file)
        shown = page(f"doctor: {len(labels)} host(s), {files}", findings, seconds, len(labels))
    try:
        sys.stdout.write(shown)
        sys.stdout.flush()
    except BrokenPipeError:  # its reader has seen enough
        say_no_more(sys.stdout)
    return status_of(findings)


def _configuration(parsed: argparse.Namespace) -> tuple[NeoXArgs | None, str | None]:
    """What this host reads, or why it cannot: on another host the files may be others."""
    try:
        args = NeoXArgs.from_ymls(
            [*parsed.config, *parsed.config_file],
            overrides=overrides_from_cli(parsed),
            deepspeed_config=parsed.deepspeed_config,
            conf_dir=parsed.conf_dir,
            may_be_a_part=True,
        )
    except (NeoXError, OSError) as error:
        return None, str(error)
    return args, None


def _meet(world: World) -> Meeting:
    port = os.environ.get("MASTER_PORT", "")
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    if world.num_nodes > 1 and not port.isdigit():
        raise LaunchError(
            f"environment: {world.num_nodes} hosts, but MASTER_PORT={port!r} is no port at which they could "
            "meet\n  to do: set MASTER_ADDR and MASTER_PORT on all of them"
        )
    if world.num_nodes > 1 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port = str(agreed_port(address, int(port), is_first=world.node_rank == 0))
    if world.node_rank == 0:
        return Hub(int(port or 0), world.num_nodes)
    return Guest(address, int(port), world.node_rank)


def _judge(
    facts: Facts, hub: Hub, world: World, args: NeoXArgs | None
) -> tuple[list[Finding], Case]:
    names = {0: world.hostname, **hub.hosts}
    needs, unfit = _needs(facts, args, world)
    case = Case(
        labels=labels_of(names),
        needs=needs,
        folders=folders.folders_of(args) if args is not None else {},
        absent=absent_hosts(os.environ, world.num_nodes, names),
    )
    start = _start(args, needs, world)
    return [*unfit, *start, *diagnose(facts, case)], case


def absent_hosts(env: Mapping[str, str], num_nodes: int, came: Mapping[int, str]) -> dict[str, str]:
    """Why each host that did not come is not there, as far as that can be known here."""
    hosts = named_hosts(env)
    why = (
        f"its probe did not reach node 0 within {PATIENCE:.0f} s: not started, ended at once, or the port "
        f"{env.get('MASTER_PORT', '')} of {env.get('MASTER_ADDR', 'node 0')} is closed to it"
    )
    return {
        (f"{hosts[node]} (node {node})" if node < len(hosts) else f"node {node}"): why
        for node in range(num_nodes)
        if node not in came
    }


def _needs(facts: Facts, args: NeoXArgs | None, world: World) -> tuple[Needs | None, list[Finding]]:
    """What the run needs, or a finding that it cannot be run on that many ranks."""
    if args is None:
        return None, []
    mine = facts["devices"].get(0, {})
    devices = 0 if failure_of(mine) is not None else len(mine.get("devices", ()))
    ranks = int(os.environ.get(RANKS_VARIABLE, 0)) or args.launch.num_gpus or devices or 1
    try:
        needs = needs_of(args, hosts=world.num_nodes, ranks_per_host=ranks, has_devices=devices > 0)
    except ConfigError as error:
        where = f"{world.num_nodes} host(s) × {ranks} rank(s): {error}"
        to_do = "set num_gpus (processes a host), or the keys that it names"
        return None, [Finding("versions", "error", where, to_do)]
    return needs, []


def _start(args: NeoXArgs | None, needs: Needs | None, world: World) -> Iterator[Finding]:
    """What this host's ``load`` holds for the run."""
    if args is None or needs is None or not args.model.is_given:
        return
    ranks = world.num_nodes * needs.ranks_per_host
    found = isolated(lambda: load_facts(args, ranks=ranks, nodes=world.num_nodes), _PATIENCE)
    failure = failure_of(found)
    if failure is not None:
        text = f"load {args.checkpointing.load}: {failure}"
        yield Finding("folders", "error", text, "see whether its file system answers")
        return
    if found is None:
        return
    if not found.refusal:
        yield Finding("folders", "ok", f"load {found.text}")
        return
    what, _, to_do = found.refusal.partition("\n  to do: ")
    lines = "; ".join(map(str.strip, what.splitlines()))
    yield Finding("folders", "error", lines, " ".join(to_do.split()))


def _by_label(facts: Facts, labels: Mapping[int, str]) -> dict[str, object]:
    shown: dict[str, object] = {
        topic: {labels[node]: value for node, value in found.items() if node in labels}
        for topic, found in facts.items()
        if topic != "links"
    }
    shown["links"] = [
        {"from": labels[each["from"]], "to": labels[int(other)], **link}
        for each in facts.get("links", {}).values()
        for other, link in each["to"].items()
    ]
    return shown


if __name__ == "__main__":
    run_door(main)
