"""The command lines of ``tools/ckpts/convert_*.py``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from megatron import logging as neox_logging
from megatron.conversion.comparison import TOLERANCE
from megatron.conversion.exporting import Wishes, compare_export, export_checkpoint
from megatron.conversion.families import FAMILIES
from megatron.conversion.importing import Layout, import_folder, import_model
from megatron.conversion.shards import bytes_in
from megatron.conversion.sources import raw_source

_TO_HF = """Turn a checkpoint into a folder that transformers loads: config, safetensors, tokenizer.

Any layout of ranks will do. What kind of model it is, its own configuration says. At the end the logits of
both are compared, where transformers is installed; if they differ nothing is left behind.

example:
  python tools/ckpts/convert_neox_to_hf.py --input_dir checkpoints/mine --output_dir hf/mine
  python tools/ckpts/convert_neox_to_hf.py --input_dir checkpoints/mine --output_dir hf/mine --compare_only
"""
_FROM_HF = """Turn a folder of Hugging Face's into a checkpoint, and write the configuration for it.

The result is loaded by any number of ranks; --tp and --pp write it as a run of such a layout would. At the
end the logits of both are compared, where transformers is installed; if they differ nothing is left behind.

example:
  python tools/ckpts/convert_hf_to_neox.py --input_dir hf/mine --output_dir checkpoints/from_hf
  ./deepy.py generate.py checkpoints/from_hf/model.yml configs/text_generation.yml
"""
_FROM_RAW = """Turn Llama's or Mistral's own files (params.json, consolidated.*.pth) into a checkpoint.

All of Llama 1 to 3.3 and Mistral 7B, from any number of files; the result is loaded by any number of ranks.
At the end the logits are compared with those that the files give as they lie there; if they differ nothing
is left behind.

example:
  python tools/ckpts/convert_raw_llama_weights_to_neox.py --input_dir llama --model_size 7B --output_dir mine
"""
_DTYPES = ("auto", "fp32", "bf16", "fp16")


def neox_to_hf(argv: Sequence[str] | None = None) -> None:
    """From a checkpoint to a folder of Hugging Face's."""
    parser = _parser_to_hf()
    parsed = parser.parse_args(argv)
    neox_logging.configure(rank=0)
    if parsed.compare_only:
        _refuse_without_effect(parser, parsed)
        found = compare_export(
            parsed.input_dir,
            parsed.output_dir,
            iteration=parsed.iteration,
            config_files=parsed.config_file,
            tolerance=parsed.tolerance,
        )
        sys.stdout.write(f"{found.text()}\n")
        return
    done = export_checkpoint(
        parsed.input_dir,
        parsed.output_dir,
        iteration=parsed.iteration,
        config_files=parsed.config_file,
        wishes=Wishes(
            dtype=None if parsed.dtype == "auto" else parsed.dtype,
            max_shard_size=bytes_in(parsed.max_shard_size),
            family=parsed.architecture,
            with_tokenizer=not parsed.no_save_tokenizer,
            tolerance=parsed.tolerance,
        ),
    )
    sys.stdout.write(f"{done.text()}\n")


def _parser_to_hf() -> argparse.ArgumentParser:
    parser = _parser(_TO_HF)
    add = parser.add_argument
    _add_folders(parser, "a run's checkpoints, or one of them (global_step<N>)")
    add(
        "--config_file",
        "--config-file",
        nargs="+",
        default=(),
        metavar="FILE",
        help="configuration of the model; default: the one in the checkpoint",
    )
    add("--iteration", type=int, metavar="N", help="step of the checkpoint; default: the latest")
    _add_common(parser)
    add("--max_shard_size", "--max-shard-size", default="5GB", metavar="SIZE", help="of one file")
    names = [family.name for family in FAMILIES]
    add(
        "--architecture",
        choices=[*names, "neox"],
        help="one of several that can express the model; default: the first that can",
    )
    add(
        "--no_save_tokenizer",
        "--no-save-tokenizer",
        action="store_true",
        help="leave the tokenizer's files out",
    )
    add(
        "--compare_only",
        "--compare-only",
        action="store_true",
        help="write nothing: compare the folder that is there, whoever made it, with the checkpoint",
    )
    return parser


def _refuse_without_effect(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """Refuse, where nothing is written, what says how to write."""
    for name in ("dtype", "max_shard_size", "architecture", "no_save_tokenizer"):
        if getattr(parsed, name) != parser.get_default(name):
            parser.error(f"--{name} says how to write a folder: --compare_only writes none")


def hf_to_neox(argv: Sequence[str] | None = None) -> None:
    """From a folder of Hugging Face's to a checkpoint."""
    parser = _parser(_FROM_HF)
    _add_folders(
        parser, "with config.json, safetensors and tokenizer, as save_pretrained writes it"
    )
    _add_layout(parser)
    _add_common(parser)
    parsed = parser.parse_args(argv)
    neox_logging.configure(rank=0)
    done = import_folder(
        parsed.input_dir,
        parsed.output_dir,
        layout=Layout(parsed.tp, parsed.pp),
        dtype=None if parsed.dtype == "auto" else parsed.dtype,
        tolerance=parsed.tolerance,
    )
    sys.stdout.write(f"{done.text()}\n")


def raw_llama_to_neox(argv: Sequence[str] | None = None) -> None:
    """From Llama's own files to a checkpoint."""
    parser = _parser(_FROM_RAW)
    add = parser.add_argument
    _add_folders(parser, "with params.json; or, with --model_size, the folder above it")
    add("--model_size", "--model-size", metavar="NAME", help="folder in input_dir, such as 7B")
    _add_layout(parser, "--num_output_shards", "--num-output-shards")
    add(
        "--pipeline_parallel",
        "--pipeline-parallel",
        action="store_const",
        const=1,
        dest="pp",
        help="a file a layer, as a pipeline writes them: --pp 1",
    )
    _add_common(parser)
    add(
        "--max_position_embeddings",
        type=int,
        metavar="N",
        help="positions of the model; default: those of the release that it looks like",
    )
    add(
        "--rope_scaling_factor",
        type=float,
        metavar="X",
        help="by which rotations are stretched (Llama 3.1 on); default: its release's",
    )
    parsed = parser.parse_args(argv)
    neox_logging.configure(rank=0)
    parent = Path(parsed.input_dir)
    source = raw_source(
        parent / (parsed.model_size or ""),
        None if parsed.dtype == "auto" else parsed.dtype,
        parent=parent,
        max_position_embeddings=parsed.max_position_embeddings,
        rope_scaling_factor=parsed.rope_scaling_factor,
    )
    done = import_model(
        source,
        parsed.output_dir,
        layout=Layout(parsed.tp, parsed.pp),
        tolerance=parsed.tolerance,
    )
    sys.stdout.write(f"{done.text()}\n")


def _parser(text: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _add_folders(parser: argparse.ArgumentParser, source: str) -> None:
    for name, help_text in (("input", source), ("output", "a new folder")):
        parser.add_argument(
            f"--{name}_dir", f"--{name}-dir", required=True, metavar="FOLDER", help=help_text
        )


def _add_layout(parser: argparse.ArgumentParser, *more_names: str) -> None:
    add = parser.add_argument
    add(
        "--tp",
        *more_names,
        type=int,
        default=1,
        metavar="N",
        help="ranks that share each weight; default: 1",
    )
    add(
        "--pp",
        type=int,
        default=0,
        metavar="N",
        help="stages of a pipeline; default: 0, which is no pipeline",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype",
        "--precision",
        choices=_DTYPES,
        default="auto",
        help="of the weights; default: as they are",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="X",
        help=f"how far logits may be apart; default: {TOLERANCE:g}",
    )
