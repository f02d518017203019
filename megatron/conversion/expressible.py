"""Which family can express a model, and what stands in the way where none can.

There is no list of conditions. A model is written in a family's words and read back: what has become of it
is what the family would compute. If that is the same model, the family will do; else the keys that differ
are those that it has no words for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from megatron.conversion.families import FAMILIES, Family
from megatron.conversion.fields import Inexpressible
from megatron.conversion.window_fields import windows_of
from megatron.errors import CheckpointError
from megatron.model.positional_embeddings import attention_factor
from megatron.neox_arguments.sections import ModelArgs
from megatron.neox_arguments.sections.positions import SCALING_KEYS

# What changes nothing of what a trained model computes, or is compared under another key.
_LEFT_OUT = frozenset(
    {
        "precision",
        "seq_length",
        "make_vocab_size_divisible_by",
        "init_method",
        "init_method_std",
        "output_layer_init_method",
        "hidden_dropout",
        "attention_dropout",
        "mlp_multiple_of",
        "expansion_factor",
        "bias_gelu_fusion",
        "use_qk_layernorm",
    }
)


def computed(model: ModelArgs) -> dict[str, Any]:
    """What decides what ``model`` computes, by key, in a form in which equal models are equal.

    A key that has come since counts like any other: nothing is lost because nobody thought of it.
    """
    facts = {item.name: getattr(model, item.name) for item in fields(ModelArgs)}
    facts = {key: value for key, value in facts.items() if key not in _LEFT_OUT}
    facts |= {
        "head_dim": model.head_width,
        "num_kv_heads": model.kv_heads,
        "intermediate_size": model.mlp_width,
        "use_bias_in_qkv": model.qkv_has_bias,
        "activation": "silu" if model.activation == "swish" else model.activation,
        "gelu_form": model.has_tanh_gelu,
        "qk_norm": model.qk_norm_kind,
        "use_bias_in_norms": model.norm_has_bias,
        "sliding_window_width": windows_of(model),
        "attention_config": tuple(set(model.attention_kinds) - _FULL_KINDS),
    }
    if model.rotary_scaling == "yarn":
        facts["rotary_attention_factor"] = attention_factor(model)
    return {key: value for key, value in facts.items() if _matters(model, key)}


def _matters(model: ModelArgs, key: str) -> bool:
    """Whether a key, beside those that choose what there is, has a meaning for ``model``."""
    if key in _EPSILONS:
        return model.norm in _EPSILONS[key]
    if key.startswith("rpe_"):
        return model.pos_emb == "rpe"
    if key.startswith("rotary_"):
        return model.pos_emb == "rotary" and key in (*_ROTARY, *SCALING_KEYS[model.rotary_scaling])
    return True


# One function, up to the windows that are compared by themselves.
_FULL_KINDS = {"global", "flash", "local"}
_EPSILONS = {
    "layernorm_epsilon": ("layernorm", "non_parametric_layernorm"),
    "rms_norm_epsilon": ("rmsnorm",),
    "scalenorm_epsilon": ("scalenorm",),
}
_ROTARY = ("rotary_pct", "rotary_emb_base", "rotary_scaling")


@dataclass(frozen=True)
class Difference:
    """A key of which a family would make something else."""

    key: str
    ours: object
    theirs: object

    def __str__(self) -> str:
        return f"{self.key}: {_short(self.ours)} (it has {_short(self.theirs)})"


def _short(value: object, most: int = 80) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}…"


def differences(family: Family, model: ModelArgs) -> list[Difference]:
    """What of ``model`` the family has no words for; empty when it can express it."""
    found: list[Difference] = []
    config: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    for item in family.fields:
        with _noting(found):
            config.update(item.write(model))
    for item in family.fields:
        with _noting(found):
            keys.update(item.read(config))
    said = {difference.key for difference in found}
    theirs = computed(ModelArgs(**keys, seq_length=model.seq_length))
    ours = computed(model)
    return found + [
        Difference(key, ours.get(key), theirs.get(key))
        for key in (*ours, *(theirs.keys() - ours.keys()))
        if key not in said and not _equal(ours.get(key), theirs.get(key))
    ]


@contextmanager
def _noting(found: list[Difference]) -> Iterator[None]:
    """Add to ``found`` what cannot be expressed in the block."""
    try:
        yield
    except Inexpressible as error:
        found.append(Difference(error.where, error.found, error.expected))


def _equal(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, int | float):
        # embedding_scale may be typed with fewer digits; what that does, the logits tell.
        return math.isclose(one, other, rel_tol=1e-6)
    return one == other


def family_named(name: str) -> Family:
    """The row of the table, by ``model_type``.

    Raises:
        CheckpointError: there is none.
    """
    for family in FAMILIES:
        if name in (family.name, family.name.removeprefix("gpt_")):
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise CheckpointError(f"the family {name!r} is not in the table\n  expected: one of {known}")


def family_of(model: ModelArgs, name: str | None = None) -> Family:
    """The first family that can express ``model``, or the one called ``name``.

    Raises:
        CheckpointError: none can, with the keys that stand in the way of the nearest.
    """
    candidates = FAMILIES if name is None else (family_named(name),)
    found = {family.name: differences(family, model) for family in candidates}
    for family in candidates:
        if not found[family.name]:
            return family
    nearest = min(found, key=lambda each: len(found[each]))
    lines = "\n".join(f"    {difference}" for difference in found[nearest][:5])
    known = ", ".join(found)
    problem = f"none of the families that are known here ({known}) can express this model"
    raise CheckpointError(
        f"{problem if name is None else f'{nearest} cannot express this model'}\n"
        f"  found: what {nearest} has no words for:\n{lines}\n"
        "  to do: train with other values of these keys, or add a row to megatron/conversion/families.py"
    )
