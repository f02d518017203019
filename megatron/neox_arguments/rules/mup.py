"""Maximal update parametrisation: what it needs, and what it has no answer for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from megatron.neox_arguments.rules.rule import Finding, Rules

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

RULES = Rules()

# Keys that do nothing without use_mup.
MULTIPLIERS = (
    "mup_init_scale",
    "mup_attn_temp",
    "mup_output_temp",
    "mup_embedding_mult",
    "mup_rp_embedding_mult",
)


@RULES.about("use_mup", "save_base_shapes", "base_shapes_file")
def _base_shapes_have_a_file(args: NeoXArgs) -> Iterator[Finding]:
    mup = args.mup
    if mup.base_shapes_file is not None or not (mup.use_mup or mup.save_base_shapes):
        return
    why = (
        "that is where they are written to"
        if mup.save_base_shapes
        else ("run a narrow model once with save_base_shapes: true, which writes it")
    )
    key = "save_base_shapes" if mup.save_base_shapes else "use_mup"
    yield "base_shapes_file", f"missing, and {key} is true: {why}"


@RULES.about("coord_check", "save_base_shapes")
def _one_purpose(args: NeoXArgs) -> Iterator[Finding]:
    if args.mup.coord_check and args.mup.save_base_shapes:
        yield "coord_check", "save_base_shapes is true too: a run does one of the two, and ends"


@RULES.about("use_mup", "optimizer", "optimizer_type")
def _rates_are_adams(args: NeoXArgs) -> Iterator[Finding]:
    if not args.mup.use_mup:
        return
    if args.optim.name == "sgd":
        yield (
            "use_mup",
            "its learning rates are those of Adam, which does not see how large gradients are; for sgd they "
            "would not carry over: use Adam, or take use_mup out",
        )
    elif args.optim.params.get("adam_w_mode") is False:
        yield (
            "use_mup",
            "with optimizer.params.adam_w_mode: false weight decay is added to gradients, which get smaller "
            "with the width: take adam_w_mode out",
        )


@RULES.about("use_mup", "norm")
def _sizes_do_not_follow_widths(args: NeoXArgs) -> Iterator[Finding]:
    if args.mup.use_mup and args.model.norm == "scalenorm":
        yield (
            "use_mup",
            "norm: scalenorm gives vectors a fixed length, so that their numbers get smaller with the width: "
            "use another norm",
        )


@RULES.about("coord_check", "pipe_parallel_size")
def _coordinates_are_in_one_place(args: NeoXArgs) -> Iterator[Finding]:
    stages = args.parallelism.pipe_parallel_size
    if args.mup.coord_check and stages > 1:
        yield (
            "coord_check",
            f"looks at all layers, and each of the {stages} stages of a pipeline (pipe_parallel_size) holds "
            "some: use pipe_parallel_size: 0 for it",
        )
