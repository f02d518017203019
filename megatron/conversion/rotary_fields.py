"""Rotary positions in a ``config.json``: base, share of the head, scaling for longer texts.

Releases 4 of transformers have ``rope_theta`` and ``rope_scaling`` (GPT-NeoX: ``rotary_emb_base`` and
``rotary_pct``), releases 5 put all of it into ``rope_parameters``. Both are written, either is read;
``rope_scaling`` counts where they differ, as in transformers.
"""

from __future__ import annotations

from typing import Any

from megatron.conversion.fields import Config, Field, Inexpressible, Keys, value_of
from megatron.model.positional_embeddings import attention_factor
from megatron.neox_arguments.sections import ModelArgs
from megatron.neox_arguments.sections.positions import SCALING_KEYS

# What transformers takes where a file says nothing.
_BASE = 10000.0
_NEOX_SHARE = 0.25

# In every kind of scaling.
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_ORIGINAL = "original_max_position_embeddings"


def rotary() -> Field:
    """Rotations of whole heads."""

    def write(model: ModelArgs) -> Config:
        scaling = _scaling(model)
        base = {"rope_theta": float(model.rotary_emb_base)}
        return {
            **base,
            "rope_scaling": scaling or None,
            "rope_parameters": {"rope_type": "default", **scaling, **base},
        }

    def read(config: Config) -> Keys:
        found = _parameters(config)
        base = found.get("rope_theta", value_of(config, "rope_theta", _BASE))
        share = found.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        if share not in (None, 1, 1.0):
            raise Inexpressible("partial_rotary_factor", share, "1: the family rotates whole heads")
        return {"rotary_emb_base": whole_base(base), **_scaling_keys(config, found)}

    return Field(("rope_theta", "rope_scaling", "rope_parameters"), write, read)


def neox_rotary() -> Field:
    """Rotations of a share of each head, under GPT-NeoX's names."""

    def write(model: ModelArgs) -> Config:
        scaling = _scaling(model)
        share, base = model.rotary_pct, model.rotary_emb_base
        parameters = {"rope_theta": float(base), "partial_rotary_factor": share}
        return {
            "rotary_pct": share,
            "rotary_emb_base": base,
            "rope_scaling": scaling or None,
            "rope_parameters": {"rope_type": "default", **scaling, **parameters},
        }

    def read(config: Config) -> Keys:
        found = _parameters(config)
        base = found.get("rope_theta", value_of(config, "rotary_emb_base", _BASE))
        share = found.get("partial_rotary_factor", value_of(config, "rotary_pct", _NEOX_SHARE))
        return {
            "rotary_pct": share,
            "rotary_emb_base": whole_base(base),
            **_scaling_keys(config, found),
        }

    return Field(("rotary_pct", "rotary_emb_base", "rope_scaling", "rope_parameters"), write, read)


def _parameters(config: Config) -> dict[str, Any]:
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in found.values()):
        raise Inexpressible("rope_parameters", found, "the same rotations in every layer")
    return dict(found)


def whole_base(base: Any) -> int:
    """The base of the rotary frequencies as our key has it.

    Raises:
        Inexpressible: it is no whole number.
    """
    if not isinstance(base, int | float) or not float(base).is_integer() or base < 1:
        raise Inexpressible("rope_theta", base, "a whole number, as rotary_emb_base is")
    return int(base)


# What transformers calls the keys of scaling.
_NAMES = {
    "rotary_scaling_factor": "factor",
    "rotary_original_positions": _ORIGINAL,
    "rotary_low_freq_factor": "low_freq_factor",
    "rotary_high_freq_factor": "high_freq_factor",
    "rotary_beta_fast": "beta_fast",
    "rotary_beta_slow": "beta_slow",
    "rotary_attention_factor": "attention_factor",
}


def _names(kind: str) -> dict[str, str]:
    """The parameters of a kind of scaling, with our keys."""
    return {_NAMES[key]: key for key in SCALING_KEYS[kind]}


def _scaling(model: ModelArgs) -> dict[str, Any]:
    """What is written about scaling; nothing where there is none."""
    kind = model.rotary_scaling
    if kind == "none":
        return {}
    written = {name: getattr(model, key) for name, key in _names(kind).items()}
    if kind == "yarn":
        written["attention_factor"] = attention_factor(model)  # the key may leave it to a formula
    return {"rope_type": kind, **written}


def _scaling_keys(config: Config, found: dict[str, Any]) -> Keys:
    kind = found.get("rope_type", found.get("type", "default"))
    if kind in (None, "default"):
        return {}
    known = [known for known in SCALING_KEYS if known != "none"]
    if kind not in known:
        raise Inexpressible("rope_type", kind, f"default, {', '.join(known)}")
    names = _names(kind)
    given = {name: value for name, value in found.items() if value is not None}
    if kind == "yarn" and given.pop("truncate", True) is not True:
        # Its usual form: where the two kinds of frequencies meet is rounded to whole pairs.
        raise Inexpressible("rope_parameters.truncate", False, "true")
    unknown = sorted(given.keys() - names.keys() - _COMMON)
    if unknown:
        raise Inexpressible(f"rope_parameters.{unknown[0]}", given[unknown[0]], "no such field")
    if kind == "yarn" and _ORIGINAL not in given:
        given[_ORIGINAL] = value_of(config, "max_position_embeddings")
    missing = [name for name in ("factor", _ORIGINAL) if name in names and name not in given]
    if missing:
        raise Inexpressible(f"rope_parameters.{missing[0]}", None, f"a value: {kind} needs it")
    keys = {key: given[name] for name, key in names.items() if name in given}
    return {"rotary_scaling": kind, **keys}
