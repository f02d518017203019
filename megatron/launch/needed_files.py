"""Files that a start reads and that are not here, or are damaged: what `--check` ends with status 2 for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from megatron.launch.command_line import DEFAULT_SCRIPT, SCRIPTS
from megatron.launch.data_facts import data_problems
from megatron.launch.plan import ROOT
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.path_places import DATA_PATHS, TOKENIZER_PATHS, with_place
from megatron.neox_arguments.tokenizer_files import files_read, unset_files

# Programs that read the token files, and those that build the tokenizer.
_READS_DATA = DEFAULT_SCRIPT
_BUILD_TOKENIZER = SCRIPTS
# Keys that name them.
_PATHS = (*TOKENIZER_PATHS, *DATA_PATHS, "hostfile", "base_shapes_file")


def problems_with_files(args: NeoXArgs, script: str, *, is_start: bool) -> list[str]:
    """What ``script`` would stop at, in its own words.

    The tokenizer may be left open where it is a configuration that is checked, and no start, but not by half.

    Paths that a file of `configs/` names, as it is shipped, are places for the user's own: nobody has
    been promised that they are there, and ``--check`` shows them in its page alone.
    """
    examples = _examples(args)
    found = dict(_missing_files(args))
    if Path(script).name == _READS_DATA:
        found |= data_problems(args.data)
    missing = [
        with_place(args, text, _PATHS)
        for path, text in found.items()
        if not any(path in text for text in examples)
    ]
    tokenizer = args.tokenizer
    builds = is_start and Path(script).name in _BUILD_TOKENIZER
    if builds or tokenizer.vocab_file or tokenizer.merge_file:
        missing += unset_files(tokenizer.tokenizer_type, tokenizer.vocab_file, tokenizer.merge_file)
    return missing


def missing_lines(args: NeoXArgs) -> list[str]:
    """A line for each file beside the data and the vocabulary, of which others speak, that is not here."""
    others = {str(path) for key, path in _tokenizer_files(args).items() if key == "vocab_file"}
    return [text for path, text in _missing_files(args) if path not in others]


def _missing_files(args: NeoXArgs) -> Iterator[tuple[str, str]]:
    named: dict[str, str | None] = {key: str(path) for key, path in _tokenizer_files(args).items()}
    named["hostfile"] = args.launch.hostfile
    if args.mup.use_mup and not args.mup.save_base_shapes:
        named["base_shapes_file"] = args.mup.base_shapes_file
    for key, path in named.items():
        if path is not None and not Path(path).exists():
            yield path, f"{key}: no such file: {Path(path).absolute()}"


def _tokenizer_files(args: NeoXArgs) -> dict[str, Path]:
    tokenizer = args.tokenizer
    return files_read(tokenizer.tokenizer_type, tokenizer.vocab_file, tokenizer.merge_file)


def _examples(args: NeoXArgs) -> list[str]:
    """The texts of the configuration's files that are those of `configs/`, unchanged."""
    shipped = {path.read_text(encoding="utf-8") for path in (ROOT / "configs").rglob("*.yml")}
    return [file.text for file in args.files if file.text in shipped]
