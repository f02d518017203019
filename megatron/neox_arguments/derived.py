"""What follows from what: the one precision out of three keys, and the ZeRO stage that runs."""

from __future__ import annotations

from typing import Any

from megatron.neox_arguments.merging import Merged
from megatron.neox_arguments.problems import Problems, in_brackets
from megatron.neox_arguments.values import freeze, thaw

PRECISION_NAMES = {
    "bf16": "bfloat16",
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
}

_PLACEHOLDER = "/mock_path"


def derive_precision(merged: Merged, values: dict[str, Any], problems: Problems) -> None:
    """One precision out of ``precision`` and the switches of ``bf16`` and ``fp16``."""
    says = _switched_on(merged)
    written = merged.values.get("precision")
    if isinstance(written, str):
        says = {"precision": PRECISION_NAMES.get(written, written), **says}
    for group, kind in (("fp16", "fp16"), ("bf16", "bfloat16")):
        switch = merged.values.get(group)
        off = isinstance(switch, dict) and switch.get("enabled") is False
        if off and says.get("precision") == kind:
            problems.add(
                "precision",
                f"is {kind}, but {group}.enabled is false{in_brackets(merged.place((group, 'enabled')))}",
                merged.place(("precision",)),
            )
    if len(set(says.values())) > 1:
        first = next(iter(says))
        parts = [
            f"{key} says {kind}{in_brackets(merged.place(tuple(key.split('.'))))}"
            for key, kind in says.items()
        ]
        problems.add(
            "precision",
            f"contradiction: {', '.join(parts)}: take one out, or set its enabled to false",
            merged.place(tuple(first.split("."))),
        )
        return
    for kind in ("bfloat16", "fp16"):
        if kind in says.values():
            values["precision"] = kind


def _switched_on(merged: Merged) -> dict[str, str]:
    """The precision that each switch asks for, by the switch's dotted key.

    ``fp16: {type: bfloat16, enabled: true}`` is how older files of GPT-NeoX ask for bf16.
    """
    says: dict[str, str] = {}
    for group, kind in (("fp16", "fp16"), ("bf16", "bfloat16")):
        switch = merged.values.get(group)
        if isinstance(switch, dict) and switch.get("enabled") is True:
            written = str(switch.get("type", kind))
            says[f"{group}.enabled"] = PRECISION_NAMES.get(written, written)
    return says


def derive_zero_stage(values: dict[str, Any], notes: list[str]) -> None:
    """The stage that runs, in ``zero_stage`` and in ``zero_optimization`` alike."""
    stage = values.setdefault("zero_stage", 0)
    if values.get("precision", "fp32") == "fp32" or stage != 0:
        return
    values["zero_stage"] = 1
    group = values.get("zero_optimization")
    if group is not None:
        values["zero_optimization"] = freeze({**thaw(group), "stage": 1})
    notes.append(
        "zero_optimization.stage: 0 runs as 1, because DeepSpeed's stage 0 takes a wrong first Adam "
        "step in half precision"
    )


def derive_hostfile(values: dict[str, Any], notes: list[str]) -> None:
    """GPT-NeoX's own files name a hostfile that nobody has, for each user to change."""
    if values.get("hostfile") == _PLACEHOLDER:
        values["hostfile"] = None
        notes.append(f"ignored: hostfile ({_PLACEHOLDER} is a placeholder of GPT-NeoX's files)")
