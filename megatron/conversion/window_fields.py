"""Sliding windows in a ``config.json``: of all layers (Mistral), or of some (Qwen)."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from megatron.conversion.fields import Config, Field, Inexpressible, Keys, value_of
from megatron.neox_arguments.sections import ModelArgs

_SLIDING, _FULL = "sliding_attention", "full_attention"


def windows_of(model: ModelArgs) -> tuple[int | None, ...]:
    """How many tokens back each layer sees, itself included; None for all."""
    return tuple(model.window_of(layer) for layer in range(model.num_layers))


def _one_window(model: ModelArgs) -> int | None:
    found = set(windows_of(model))
    if len(found) > 1:
        raise Inexpressible(
            "attention_config", "windows in some layers", "the same in every layer of this family"
        )
    return found.pop()


def one_window(default: int | None) -> Field:
    """The same window in every layer; null for none."""

    def read(config: Config) -> Keys:
        window = value_of(config, "sliding_window", default)
        return {} if window is None else {"sliding_window_width": window}

    return Field(("sliding_window",), lambda model: {"sliding_window": _one_window(model)}, read)


def _write_some(model: ModelArgs) -> Config:
    found = windows_of(model)
    widths = {width for width in found if width is not None}
    first = next((layer for layer, width in enumerate(found) if width is not None), len(found))
    return {
        "use_sliding_window": bool(widths),
        "sliding_window": max(widths, default=None),
        "max_window_layers": first,
        "layer_types": [_FULL if width is None else _SLIDING for width in found],
    }


def windows_of_some_layers(width: int, first: int) -> Field:
    """Windows in the layers that ``layer_types`` names or, without it, from ``max_window_layers`` on.

    Args:
        width: the default of ``sliding_window``.
        first: the default of ``max_window_layers``.
    """

    def read(config: Config) -> Keys:
        layers = value_of(config, "num_hidden_layers")
        window = value_of(config, "sliding_window", width)
        if not value_of(config, "use_sliding_window", False) or window is None:
            return {}
        begin = value_of(config, "max_window_layers", first)
        kinds = config.get("layer_types") or [
            _SLIDING if layer >= begin else _FULL for layer in range(layers)
        ]
        unknown = [kind for kind in kinds if kind not in (_SLIDING, _FULL)]
        if unknown or len(kinds) != layers:
            raise Inexpressible("layer_types", kinds, f"{layers} times {_FULL} or {_SLIDING}")
        return _keys(kinds, window)

    names = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
    return Field(names, _write_some, read)


def _keys(kinds: list[str], window: int) -> Keys:
    if _SLIDING not in kinds:
        return {}
    keys: dict[str, Any] = {"sliding_window_width": window}
    if _FULL in kinds:
        ours = {_FULL: "global", _SLIDING: "local"}
        keys["attention_config"] = [[[ours[kind]], len(list(run))] for kind, run in groupby(kinds)]
    return keys
