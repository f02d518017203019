"""Errors about paths say where the configuration names them, as those about values do.

A path is found missing or broken by code that was given the path alone, and says it first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from megatron.errors import NeoXError
from megatron.neox_arguments.arguments import NeoXArgs
from megatron.neox_arguments.yaml_source import KeyPath

TOKENIZER_PATHS: Final = ("vocab_file", "merge_file")
DATA_PATHS: Final = (
    "data_path",
    *(f"{name}_data_paths" for name in ("train", "valid", "test")),
    *(f"{name}_label_data_paths" for name in ("train", "valid", "test")),
    "index_cache_dir",
    "data_local_cache_dir",
)


@contextmanager
def told_where(args: NeoXArgs, *keys: str) -> Iterator[None]:
    """An error of the block that is about the path of one of ``keys`` names the file and line of it too."""
    try:
        yield
    except NeoXError as error:
        # The same error for all who know it by its kind.
        error.args = (with_place(args, str(error), keys),)
        raise


def with_place(args: NeoXArgs, text: str, keys: Iterable[str]) -> str:
    """``text`` behind ``file.yml:12: data_path: ``, where its first line is about the path of that key.

    Of several paths that stand in it the longest is meant; what stands in no file is not named.
    """
    first = text.partition("\n")[0]
    best: tuple[int, KeyPath] | None = None
    for path, value in _paths_named(args, keys):
        if _is_named(value, first) and (best is None or len(value) > best[0]):
            best = len(value), path
    place = args.place(best[1]) if best is not None else None
    if best is None or place is None or not place.source:
        return text
    key = str(best[1][0])
    names_key = re.search(rf"(?:^|: ){re.escape(key)}: ", first)  # perhaps behind a rank
    return f"{place}: {text}" if names_key else f"{place}: {key}: {text}"


def _paths_named(args: NeoXArgs, keys: Iterable[str]) -> Iterator[tuple[KeyPath, str]]:
    """Each path that one of ``keys`` gives, with where in the configuration it is."""
    for key in keys:
        value = getattr(args, key)
        if isinstance(value, str):
            yield (key,), value
        else:
            yield from (((key, number), item) for number, item in enumerate(value or ()))


def _is_named(path: str, text: str) -> bool:
    """Whether ``text`` has ``path`` in it, or a file of it: as it stands, tidied, or from the root on."""
    forms = {path, str(Path(path)), str(Path(path).absolute())} - {""}
    return any(re.search(_pattern(form), text) for form in forms)


def _pattern(form: str) -> str:
    """Where ``form`` is a path of a text: a name that may be a word of it only where paths stand."""
    whole = rf"(?<![\w./-]){re.escape(form)}(?![\w-])"
    if re.search(r"[./]", form):
        return whole
    behind_a_key = rf"(?:^|: )[a-z_]+: {whole}"
    return rf"(?:^|: |['\"]){whole}(?=[:'\"]|$)|{whole}(?=[./]\w)|{behind_a_key}"
