"""Secrets have no place in a configuration: it is copied into checkpoints, shown, and compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from megatron.neox_arguments.merging import Merged
from megatron.neox_arguments.problems import Problems
from megatron.neox_arguments.yaml_source import KeyPath

_SECRET = re.compile(
    r"token|(\w*_)?(api_?keys?|access_keys?|passwords?|secrets?|credentials|(access|auth|api|hf|hub)_tokens?)",
    re.ASCII,
)
# scheme://user:password@host
_PASSWORD_IN_ADDRESS = re.compile(r"\w+://[^/\s:@]*:[^/\s@]+@")


def refuse_secrets(merged: Merged, problems: Problems) -> None:
    """Insist that no key at any depth holds a secret, and drop those that do.

    The message shows the key, never its value.
    """
    for path in list(_secret_paths(merged.values, ())):
        problems.add(
            ".".join(map(str, path)),
            "is a secret: keep it out of files and command lines, and put it into the environment "
            "(such as WANDB_API_KEY or COMET_API_KEY)",
            merged.place(path),
        )
        group: Any = merged.values
        for part in path[:-1]:
            group = group[part]
        del group[path[-1]]


def _secret_paths(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        here = (*path, key)
        named = isinstance(key, str) and _SECRET.fullmatch(key.lower()) and item not in (None, "")
        if named or (isinstance(item, str) and _PASSWORD_IN_ADDRESS.match(item)):
            yield here
        else:
            yield from _secret_paths(item, here)
