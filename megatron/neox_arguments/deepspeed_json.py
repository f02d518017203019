"""The configuration that DeepSpeed gets: what the user wrote, and what must not be left to its defaults."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from megatron.neox_arguments.nested_keys import NOT_DEEPSPEEDS
from megatron.neox_arguments.values import thaw

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

# DeepSpeed looks what is not its own up in torch.optim, where capitals matter.
_OPTIMIZER_NAMES = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}


def deepspeed_config(args: NeoXArgs, world_size: int) -> dict[str, Any]:
    """The dict for ``deepspeed.initialize(config=...)``: plain, JSON-able, the caller's to change.

    Every DeepSpeed key that the user wrote is in it with the value that was written, also where that
    equals a default. Three exceptions: the ZeRO stage of half-precision runs (0 runs as 1),
    ``steps_per_print`` and ``wall_clock_breakdown`` in a pipeline, and ``train_batch_size`` with context
    parallelism. DeepSpeed takes each rank that sums gradients for one with samples of its own, so it
    counts a sample once for each rank that has a part of it. Names that only GPT-NeoX's files have stay
    out: DeepSpeed would stop at them.
    """
    sizes = args.batch_sizes(world_size)
    config: dict[str, Any] = {
        "train_batch_size": sizes.global_batch_size * args.parallelism.context_parallel_size,
        "train_micro_batch_size_per_gpu": sizes.micro_batch_size,
        "gradient_accumulation_steps": sizes.gradient_accumulation_steps,
        "optimizer": _optimizer(args),
        "gradient_clipping": args.optim.gradient_clipping,
        "zero_optimization": {
            **thaw(args.optim.zero_optimization or {}),
            "stage": args.optim.zero_stage,
        },
        "steps_per_print": args.logging.steps_per_print,
        "wall_clock_breakdown": args.logging.wall_clock_breakdown,
        # It waits for the device twice in every micro-batch, to know a throughput that nobody reads: a run
        # reports its own.
        "timers": {"throughput": {"enabled": False}},
    }
    for item in dataclasses.fields(args.ds):
        value = getattr(args.ds, item.name)
        if value is None:
            continue
        config[item.name] = thaw(value)
        for foreign in NOT_DEEPSPEEDS.get(item.name, ()):
            config[item.name].pop(foreign, None)
    if args.model.precision == "fp16":
        config["fp16"] = {**config.get("fp16", {}), "enabled": True}
        if args.loss_scaling.dynamic_loss_scale:
            config["fp16"]["loss_scale"] = 0
    elif config.get("fp16", {}).get("enabled"):
        # With type: bfloat16, an older file's way to ask for that.
        config["fp16"]["enabled"] = False
    if args.model.precision == "bfloat16":
        config["bf16"] = {**config.get("bf16", {}), "enabled": True}
    if args.ds_extras.fp32_allreduce:
        config.setdefault("communication_data_type", "fp32")
    if args.checkpointing.use_node_local_storage:
        config["checkpoint"] = {**config.get("checkpoint", {}), "use_node_local_storage": True}
    if args.optim.name == "sgd" and args.optim.zero_stage > 0:
        config.setdefault("zero_allow_untested_optimizer", True)
    config.update(thaw(args.ds_extras.deepspeed_extra_args or {}))
    if args.parallelism.pipe_parallel_size > 0:
        config |= _pipeline(args, config)
    return config


def _pipeline(args: NeoXArgs, written: dict[str, Any]) -> dict[str, Any]:
    """What the pipeline engine must be told beside what is ``written``."""
    # By default it splits what stages exchange among tensor-parallel ranks and joins it behind, as if
    # all held the same; with sequence parallelism they do not.
    whole = args.parallelism.sequence_parallel and args.parallelism.model_parallel_size > 1
    split = {"pipe_partitioned": False, "grad_partitioned": False} if whole else {}
    return {
        **({"pipeline": {**written.get("pipeline", {}), **split}} if split else {}),
        # This engine prints its lines, past any logger; it needs a number.
        "steps_per_print": sys.maxsize,
        # Its timers stop a stage that sends gradients back: they find themselves started already.
        "wall_clock_breakdown": False,
    }


def _optimizer(args: NeoXArgs) -> dict[str, Any]:
    optim = args.optim
    written = thaw(optim.optimizer or {})
    params = {"lr": optim.lr, "weight_decay": optim.weight_decay, **thaw(optim.params)}
    if optim.name in ("adam", "adamw"):
        params.setdefault("betas", list(optim.betas))
        params.setdefault("eps", optim.eps)
        # torch's own AdamW: DeepSpeed's needs a compiler at run time.
        params.setdefault("torch_adam", True)
    return {**written, "type": _OPTIMIZER_NAMES[optim.name], "params": params}
