"""``./deepy.py --check``: the configuration, or a whole start, is checked and described; nothing starts."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from megatron.errors import LaunchError
from megatron.launch.command_line import DEFAULT_SCRIPT, Command
from megatron.launch.dry_run import shown_value
from megatron.launch.facts import Row, facts_page
from megatron.launch.load_facts import load_facts
from megatron.launch.machine import accelerator_count, is_this_host
from megatron.launch.needed_files import problems_with_files
from megatron.launch.plan import check_configuration, plan_launch
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.payload import VARIABLE


@dataclass(frozen=True)
class Report:
    """What a check has to say.

    Attributes:
        page: the facts, or the JSON that DeepSpeed would get.
        stops_at: files without which a start would end at once, or a checkpoint from which it could not go
            on, as it would say it.
    """

    page: str
    stops_at: tuple[str, ...] = ()

    def raise_if_it_stops(self) -> None:
        """Say that it would not start.

        Raises:
            LaunchError: it would not.
        """
        if self.stops_at:
            raise LaunchError(
                "the configuration is right, but a run could not start here:\n"
                + "\n".join("  " + text.replace("\n", "\n    ") for text in self.stops_at)
            )


def check(command: Command) -> Report:
    """The page about a configuration, or the JSON that DeepSpeed would get.

    With a script it is the start on this host that is checked. Without one it is the configuration: on
    as many ranks as it asks for, as are here, or as one copy of the model takes, whichever is more; and
    it may be a part of one, or lack a batch.

    Raises:
        NeoXError: the configuration, or the start, cannot be run.
    """
    accelerators = accelerator_count()
    rows: list[Row] = []
    stops_at: list[str] = []
    start = None
    trains = command.names_script and Path(command.script).name == DEFAULT_SCRIPT
    trains = trains and not command.deepspeed_json
    if command.names_script:
        args = check_configuration(command)
        if trains:
            args.require(
                "train_iters|train_epochs", "data_path|train_data_paths", purpose="training"
            )
        plan = plan_launch(command, args)
        ranks, nodes = plan.ranks, len(plan.hosts)
        variables = " ".join(
            f"{name}={shown_value(name, value)}"
            for name, value in plan.env.items()
            if name != VARIABLE
        )
        if trains:
            is_first = is_this_host(plan.hosts[0].host)
            start = load_facts(args, ranks=ranks, nodes=nodes, is_first=is_first)
        rows = [("command", shlex.join(plan.command)), ("environment", variables)]
    else:
        args = check_configuration(command, may_be_a_part=True)
        ranks, nodes = _ranks_for(args, accelerators), max(1, args.launch.num_nodes)
        if args.batch.train_batch_size or args.batch.train_micro_batch_size_per_gpu:
            check_configuration(command, ranks, may_be_a_part=True)
    if command.deepspeed_json:
        if not args.model.is_given:
            raise LaunchError("--deepspeed_json: there is no model in this configuration")
        return Report(json.dumps(args.deepspeed_config(ranks), indent=2) + "\n")
    if start is not None:
        rows.insert(0, ("load", start.text))
        stops_at += filter(None, [start.refusal])
    page = facts_page(args, ranks=ranks, nodes=nodes, accelerators=accelerators, more=rows)
    stops_at += problems_with_files(args, command.script, is_start=command.names_script)
    if command.names_script and args.training.distributed_backend == "nccl" and not accelerators:
        stops_at.append(
            "distributed_backend: nccl needs GPUs, and there are none here: leave it out, which chooses by "
            "device, or set it to gloo"
        )
    return Report(page, tuple(stops_at))


def _ranks_for(args: NeoXArgs, accelerators: int) -> int:
    """Ranks that the configuration asks for, else those of this host, in whole copies of the model."""
    asked = (args.launch.num_gpus or accelerators or 1) * max(1, args.launch.num_nodes)
    ranks = int(args.expected.get("world_size") or asked)
    copy = args.parallelism.ranks_per_replica
    return ranks if args.launch.num_gpus else -(-ranks // copy) * copy
