"""What ZeRO and offloading can do here: which stages, with what, and which options of DeepSpeed's.

Refused is what DeepSpeed forbids or leaves without effect, and what it compiles while the run starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from megatron.neox_arguments.rules.rule import Finding, Rules

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

RULES = Rules()
_GROUP = "zero_optimization"
_COMPILED = "needs code that DeepSpeed compiles for GPUs when a run starts: take it out"
# Options that ask for something when they are true, and why they cannot be had.
_NOT_HERE = {
    "zero_quantized_weights": _COMPILED,
    "zero_quantized_nontrainable_weights": _COMPILED,
    "zero_quantized_gradients": _COMPILED,
    "elastic_checkpoint": "DeepSpeed no longer loads such checkpoints: take it out",
    "legacy_stage1": "DeepSpeed no longer has it: take it out",
    "stage3_module_granularity_threshold": "DeepSpeed fails at an embedding that it takes as one piece "
    "with its like: take it out",
}


@RULES.about("zero_optimization", "zero_stage", "pipe_parallel_size")
def _zero_stage_is_here(args: NeoXArgs) -> Iterator[Finding]:
    """The stage itself, and the pipeline."""
    stage = args.optim.zero_stage
    if stage > 3:
        yield f"{_GROUP}.stage", f"found {stage}; stages are 0, 1, 2 and 3"
    elif stage >= 2 and args.parallelism.pipe_parallel_size > 0:
        yield (
            f"{_GROUP}.stage",
            f"stage {stage} cannot run in DeepSpeed's pipeline engine, which adds up gradients that "
            f"stage {stage} would have given away: use stage 1, or pipe_parallel_size: 0",
        )


@RULES.about("zero_optimization", "optimizer", "zero_force_ds_cpu_optimizer")
def _offloading_is_here(args: NeoXArgs) -> Iterator[Finding]:
    """What moves to the host's memory: from which stage on, and with which optimizer."""
    optim = args.optim
    for what, first in (("offload_optimizer", 1), ("offload_param", 3)):
        device = optim.offload_device(what)
        key = f"{_GROUP}.{what}"
        if device == "nvme":
            yield (
                f"{key}.device",
                "nvme needs DeepSpeed's asynchronous file access, which is compiled when a run starts: "
                "use cpu",
            )
        elif device == "cpu" and optim.zero_stage < first:
            stages = "stage 3" if first == 3 else "stages 1, 2 and 3"
            yield (
                key,
                f"works with ZeRO {stages}, the stage is {optim.zero_stage}: set another stage",
            )
    if args.ds.zero_force_ds_cpu_optimizer and optim.params.get("torch_adam") is not False:
        yield (
            "zero_force_ds_cpu_optimizer",
            "is true, but PyTorch's optimizer runs: take it out, or set optimizer.params.torch_adam: "
            "false, for which DeepSpeed must be installed with its cpu_adam",
        )
    yield from _offload_options(_group(args).get("offload_optimizer") or {})


def _offload_options(offload: dict[str, Any]) -> Iterator[Finding]:
    key = f"{_GROUP}.offload_optimizer"
    if offload.get("super_offload"):
        yield f"{key}.super_offload", "runs with DeepSpeed's own Adam only, not here: take it out"
    if offload.get("ratio") not in (None, 1.0):
        yield (
            f"{key}.ratio",
            "a part of the optimizer can be offloaded with DeepSpeed's own Adam only, not here: take "
            "it out",
        )


@RULES.about("zero_optimization", "prescale_gradients", "gradient_predivide_factor")
def _zero_options_are_here(args: NeoXArgs) -> Iterator[Finding]:
    """Options inside ``zero_optimization``."""
    group, stage = _group(args), args.optim.zero_stage
    for option, why in _NOT_HERE.items():
        if group.get(option):
            yield f"{_GROUP}.{option}", why
    if group.get("zenflow") is not None:
        yield f"{_GROUP}.zenflow", "is not supported: take it out"
    if (group.get("zero_hpz_partition_size") or 1) > 1:
        yield (
            f"{_GROUP}.zero_hpz_partition_size",
            "a second partition inside each node is not supported: take it out",
        )
    if group.get("compute_grad_norm") is False:
        yield (
            f"{_GROUP}.compute_grad_norm",
            "each step reports the norm of the gradient, and stops at one that is no number: take it out",
        )
    if stage in (2, 3) and group.get("reduce_scatter", True):
        asked = {
            "prescale_gradients": args.ds.prescale_gradients,
            "gradient_predivide_factor": args.ds.gradient_predivide_factor != 1.0,
        }
        for key in (key for key, is_asked in asked.items() if is_asked):
            yield (
                key,
                f"cannot be had in ZeRO stage {stage}, which scatters gradients as it sums them: take it "
                f"out, or set {_GROUP}.reduce_scatter: false",
            )


def _group(args: NeoXArgs) -> dict[str, Any]:
    return args.optim.zero_optimization or {}
