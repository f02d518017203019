"""A rule: the keys that it looks at, and what it finds wrong.

Where one of the keys has a problem of its own, the rule stays silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

# A key, and what is wrong with it: the reason and the remedy.
Finding: TypeAlias = tuple[str, str]
Rule: TypeAlias = Callable[["NeoXArgs"], Iterator[Finding]]

# Keys that every configuration needs. A rule about one of them can count on all of them.
REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")


class Rules(list[tuple[tuple[str, ...], Rule]]):
    """The rules of a file, each with its keys."""

    def about(self, *keys: str) -> Callable[[Rule], Rule]:
        """Make the function below a rule about ``keys``."""

        def add(rule: Rule) -> Rule:
            self.append((keys, rule))
            return rule

        return add
