"""Fields of a Hugging Face ``config.json``, and the keys of ours that say the same.

A :class:`Field` goes both ways: from a model of ours to what a family's file says, and back. What a file
leaves out means the family's default, which :mod:`transformers` has in code; so each field knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from megatron.neox_arguments.sections import ModelArgs

Config = Mapping[str, Any]
Keys = dict[str, Any]

# Of a field that every file of the family has to have.
REQUIRED: Any = object()


class Inexpressible(Exception):
    """One side says what the other has no words for.

    Args:
        where: the key or field.
        found: what it is.
        expected: what it would have to be.
    """

    def __init__(self, where: str, found: object, expected: str) -> None:
        super().__init__(f"{where}: {found!r}, expected {expected}")
        self.where, self.found, self.expected = where, found, expected


def value_of(config: Config, name: str, default: Any = REQUIRED) -> Any:
    """What ``config`` says or, where it says nothing, ``default``.

    Raises:
        Inexpressible: it says nothing, and there is no default.
    """
    if name in config:
        return config[name]
    if default is REQUIRED:
        raise Inexpressible(name, None, "a value: the file lacks it")
    return default


@dataclass(frozen=True)
class Field:
    """One fact of an architecture, as either side puts it.

    Attributes:
        names: the fields of ``config.json`` that tell it; several where releases of transformers differ.
        write: what they are for a model of ours.
        read: the keys of ours that follow from them. Both raise :class:`Inexpressible`.
    """

    names: tuple[str, ...]
    write: Callable[[ModelArgs], Config]
    read: Callable[[Config], Keys]


def same(name: str, key: str | None = None, default: Any = REQUIRED) -> Field:
    """A field that has the value of one key."""
    key = key or name
    return Field(
        (name,),
        lambda model: {name: getattr(model, key)},
        lambda config: {key: value_of(config, name, default)},
    )


def opposite(name: str, key: str, default: bool) -> Field:
    """A switch that is on where ours is off."""
    return Field(
        (name,),
        lambda model: {name: not getattr(model, key)},
        lambda config: {key: not value_of(config, name, default)},
    )


def fixed(name: str, *values: Any) -> Field:
    """A field for which we have no key: the first of ``values`` is written, any of them may be found."""

    def read(config: Config) -> Keys:
        found = value_of(config, name, values[0])
        if found not in values:
            raise Inexpressible(name, found, " or ".join(repr(value) for value in values))
        return {}

    return Field((name,), lambda _: {name: values[0]}, read)


def unread(name: str, value: Any) -> Field:
    """A field that changes nothing of what a model computes: written, never looked at."""
    return Field((name,), lambda _: {name: value}, lambda _: {})


def always(**keys: Any) -> Field:
    """Keys of ours that have these values in every model of the family."""
    return Field((), lambda _: {}, lambda _: dict(keys))


# Names of transformers for the function of a plain MLP and for that of a gate, and what we call it.
_PLAIN = {
    "gelu": {"activation": "gelu", "gelu_form": "erf"},
    "gelu_pytorch_tanh": {"activation": "gelu", "gelu_form": "tanh"},
    "gelu_new": {"activation": "gelu", "gelu_form": "tanh"},
    "gelu_fast": {"activation": "gelu", "gelu_form": "tanh"},
    "relu": {"activation": "relu"},
    "silu": {"activation": "silu"},
    "swish": {"activation": "silu"},
    "mish": {"activation": "mish"},
}
_GATED = {
    "silu": {"activation": "swiglu"},
    "swish": {"activation": "swiglu"},
    "gelu": {"activation": "geglu", "gelu_form": "erf"},
    "gelu_pytorch_tanh": {"activation": "geglu", "gelu_form": "tanh"},
    "gelu_new": {"activation": "geglu", "gelu_form": "tanh"},
    "relu": {"activation": "reglu"},
    "sigmoid": {"activation": "glu"},
    "linear": {"activation": "bilinear"},
}


def activation(
    *,
    gated: bool,
    default: str,
    names: tuple[str, ...] = ("hidden_act",),
    also: Mapping[str, str] | None = None,
) -> Field:
    """The MLP's function.

    Args:
        gated: whether it is that of a gate.
        default: its name where the file gives none.
        names: of the field; of several, the last one that is given counts.
        also: names that mean another one in this family.
    """
    table, also = _GATED if gated else _PLAIN, also or {}

    def write(model: ModelArgs) -> Config:
        ours: dict[str, str] = {
            "activation": "silu" if model.activation == "swish" else model.activation
        }
        if model.activation in ("gelu", "geglu"):
            ours["gelu_form"] = "tanh" if model.has_tanh_gelu else "erf"
        for theirs, keys in table.items():
            if keys == ours and theirs not in also:
                return dict.fromkeys(names, theirs)
        known = sorted({keys["activation"] for keys in table.values()})
        raise Inexpressible("activation", model.activation, f"one of {', '.join(known)}")

    def read(config: Config) -> Keys:
        given = [config[name] for name in names if config.get(name) is not None]
        theirs = given[-1] if given else default
        theirs = also.get(theirs, theirs)
        if theirs not in table:
            raise Inexpressible(names[0], theirs, f"one of {', '.join(table)}")
        return dict(table[theirs])

    return Field(names, write, read)


def _mlp_keys(config: Config) -> Keys:
    width = value_of(config, "intermediate_size")
    if not isinstance(width, int) or width % 2:
        raise Inexpressible("intermediate_size", width, "an even number, as GPT-NeoX rounds it")
    return {"intermediate_size": width}


PLAIN_MLP = Field(
    ("intermediate_size",), lambda model: {"intermediate_size": model.mlp_width}, _mlp_keys
)
# GPT-NeoX's rule for gated MLPs takes two thirds of the number, for both halves together.
GATED_MLP = Field(
    ("intermediate_size",),
    lambda model: {"intermediate_size": model.mlp_width},
    lambda config: {"intermediate_size": 3 * value_of(config, "intermediate_size")},
)


def kv_heads(default: int | None) -> Field:
    """Key and value heads; null for as many as query heads."""

    def read(config: Config) -> Keys:
        heads = value_of(config, "num_key_value_heads", default)
        return {"num_kv_heads": heads or value_of(config, "num_attention_heads")}

    return Field(
        ("num_key_value_heads",), lambda model: {"num_key_value_heads": model.kv_heads}, read
    )


def head_dim(default: int | None) -> Field:
    """Width of a head; null for what is left of the hidden size for each."""

    def read(config: Config) -> Keys:
        width = value_of(config, "head_dim", default)
        return {} if width is None else {"head_dim": width}

    return Field(("head_dim",), lambda model: {"head_dim": model.head_width}, read)


def _whole_heads(config: Config) -> Keys:
    hidden, heads = value_of(config, "hidden_size"), value_of(config, "num_attention_heads")
    if hidden % heads:
        raise Inexpressible("hidden_size", hidden, f"a multiple of num_attention_heads {heads}")
    return {}


# Transformers insists on it for some families, whatever head_dim says.
WHOLE_HEADS = Field((), lambda _: {}, _whole_heads)
