"""What attends to what: kinds of attention, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatron.neox_arguments.typed import PositiveInt

ATTENTION_KINDS = frozenset({"global", "flash", "local"})


@dataclass(frozen=True)
class AttentionArgs:
    """What attends to what."""

    attention_config: tuple[Any, ...] | None = None
    """Kind of attention per layer, as `[[[kinds...], repeats], ...]`; `global` and `flash` (the same
    attention through the fused path) and `local` (with `sliding_window_width`) are here. Default: global
    everywhere."""

    sliding_window_width: PositiveInt | None = None
    """Tokens back that each token attends to, itself included: in `local` layers, or in all where
    `attention_config` has none. Default: all."""


def expand_attention_config(config: tuple[Any, ...], num_layers: int) -> tuple[str, ...]:
    """``[[[kinds...], repeats], ...]`` written out per layer; ``all`` repeats up to ``num_layers``.

    Raises:
        ValueError: it has another form, or does not come out at ``num_layers`` layers.
    """
    kinds: list[str] = []
    for entry in config:
        is_pair = isinstance(entry, tuple | list) and len(entry) == 2
        if not is_pair or not isinstance(entry[0], tuple | list) or not entry[0]:
            raise ValueError("expected [[[kinds...], repeats], ...], such as [[[global], 12]]")
        pattern, repeats = entry
        if not all(isinstance(kind, str) for kind in pattern):
            raise ValueError("a kind of attention is a word, such as global")
        if repeats == "all":
            repeats = (num_layers - len(kinds)) // len(pattern)
        if (
            not isinstance(repeats, int)
            or isinstance(repeats, bool)
            or not 0 <= repeats <= num_layers
        ):
            raise ValueError(
                f"repeats are a whole number up to num_layers, or all; found {repeats!r}"
            )
        kinds += list(pattern) * repeats
    if len(kinds) != num_layers:
        raise ValueError(f"describes {len(kinds)} layers, but num_layers is {num_layers}")
    return tuple(kinds)
