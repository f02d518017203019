"""The files that a run reads, looked for on every host before anything is done with one of them.

A host that lacks one has often been given none. Each reader alone would name its own, and the next one
after that has been mended.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from megatron.data.indexed_dataset import data_file_path, index_file_path
from megatron.data.sources import all_paths, label_paths_of
from megatron.data.splits import SPLIT_NAMES
from megatron.errors import DataError
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.path_places import DATA_PATHS, TOKENIZER_PATHS, with_place
from megatron.neox_arguments.tokenizer_files import files_read
from megatron.runtime.world import World

_MOST_SHOWN: Final = 7


def check_files_are_here(args: NeoXArgs, world: World) -> None:
    """Insist on the files of the tokenizer and the data; a single one its reader knows more about.

    Raises:
        DataError: several are missing on this host; on the first rank of it.
    """
    if not world.is_local_first:
        return
    missing = [name for name, files in _needed(args) if any(not file.exists() for file in files)]
    if len(missing) < 2:
        return
    keys = (*TOKENIZER_PATHS, *DATA_PATHS)
    lines = [with_place(args, f"{name}: no such file", keys) for name in missing]
    more = len(lines) - _MOST_SHOWN
    raise DataError(
        "\n  ".join(
            [
                f"{len(missing)} files that the configuration names are not on host {world.hostname}",
                *lines[:_MOST_SHOWN],
                *([f"and {more} more"] if more > 0 else []),
                "to do: copy them there, or set their keys to where they are",
            ]
        )
    )


def _needed(args: NeoXArgs) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """What is read, by the name to show."""
    told, data = args.tokenizer, args.data
    for path in files_read(told.tokenizer_type, told.vocab_file, told.merge_file).values():
        yield str(path), (path,)
    labels = [path for name in SPLIT_NAMES for path in label_paths_of(data, name) if path]
    for prefix in dict.fromkeys((*all_paths(data), *labels)):
        index, tokens = index_file_path(prefix), data_file_path(prefix)
        yield f"{index} with {tokens}", (Path(index), Path(tokens))
