"""The optimizer, and the types that numbers have and are summed in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from megatron.neox_arguments.rules.rule import Finding, Rules

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

RULES = Rules()


# Options of DeepSpeed's own Adam, which torch's Adam stops at.
_DEEPSPEED_ADAM_ONLY = ("bias_correction",)


@RULES.about("optimizer", "optimizer_type")
def _options_go_together(args: NeoXArgs) -> Iterator[Finding]:
    params = args.optim.params
    if params.get("nesterov") and (not params.get("momentum") or params.get("dampening")):
        yield (
            "optimizer.params.nesterov",
            "is true: it looks ahead along the momentum, and needs one above 0, without dampening",
        )
    if params.get("foreach") and params.get("fused"):
        yield "optimizer.params.fused", "is true, and so is foreach: keep one of the two"


@RULES.about("optimizer", "optimizer_type")
def _optimizer_knows_its_options(args: NeoXArgs) -> Iterator[Finding]:
    params = args.optim.params
    if args.optim.name == "sgd" or params.get("torch_adam") is False:
        return
    for key in _DEEPSPEED_ADAM_ONLY:
        if key in params:
            yield (
                f"optimizer.params.{key}",
                "only DeepSpeed's own Adam has it: take it out, or set torch_adam: false, for which "
                "DeepSpeed needs a compiler",
            )


_SWITCHES_NOT_YET = {
    "checkpoint": ("load_universal",),
    "bf16": ("bf16_master_weights_and_grads", "bf16_optimizer_states"),
    "fp16": ("fp16_master_weights_and_grads",),
}


@RULES.about(*_SWITCHES_NOT_YET)
def _deepspeed_options_are_here(args: NeoXArgs) -> Iterator[Finding]:
    for group, keys in _SWITCHES_NOT_YET.items():
        for key in keys:
            if (getattr(args.ds, group) or {}).get(key):
                instead = ", and set reshape_on_load: true" if key == "load_universal" else ""
                yield f"{group}.{key}", f"is not supported yet: take it out{instead}"


@RULES.about("bf16", "precision")
def _gradients_are_checked(args: NeoXArgs) -> Iterator[Finding]:
    if args.model.precision != "bfloat16":
        return
    if (args.ds.bf16 or {}).get("check_grad_overflow") is False:
        yield (
            "bf16.check_grad_overflow",
            "is false: gradients that are no numbers would be put into the weights before anyone sees "
            "them: take it out",
        )


# How DeepSpeed names the type of a precision.
_DTYPES = {"fp32": ("fp32",), "bfloat16": ("bf16", "bfp16"), "fp16": ("fp16",)}


@RULES.about("data_types", "precision")
def _gradients_add_up_in_a_type_that_holds_them(args: NeoXArgs) -> Iterator[Finding]:
    asked = (args.ds.data_types or {}).get("grad_accum_dtype")
    if asked not in (None, "fp32", *_DTYPES[args.model.precision]):
        yield (
            "data_types.grad_accum_dtype",
            f"gradients of a model in {args.model.precision} cannot be added up in {asked}: use fp32, or "
            "take it out",
        )


@RULES.about("fp16", "loss_scale", "dynamic_loss_scale")
def _the_loss_scale_is_fixed_or_dynamic(args: NeoXArgs) -> Iterator[Finding]:
    scaling = args.loss_scaling
    if scaling.dynamic_loss_scale is None or scaling.dynamic_loss_scale != bool(scaling.loss_scale):
        return
    if scaling.dynamic_loss_scale:
        yield (
            "dynamic_loss_scale",
            f"is true, but loss_scale fixes the factor at {scaling.loss_scale:g}: keep one",
        )
    else:
        yield (
            "dynamic_loss_scale",
            "is false, but loss_scale fixes no factor: give one, or take it out",
        )
