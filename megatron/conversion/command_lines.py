"""The command lines of the conversions in ``tools/ckpts``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from megatron import logging as neox_logging
from megatron.conversion.comparison import TOLERANCE
from megatron.conversion.exporting import Wishes, export_checkpoint
from megatron.conversion.families import FAMILIES
from megatron.conversion.importing import Layout, import_folder
from megatron.conversion.raw_llama import PARAMS_NAME, raw_llama_source
from megatron.conversion.shards import bytes_in

_TO_HF = """Turn a checkpoint into a folder that transformers loads: config, safetensors, tokenizer.

Any layout of ranks will do. What kind of model it is, its own configuration says. At the end the logits of
both are compared, where transformers is installed; if they differ nothing is left behind.

example:
  python tools/ckpts/convert_neox_to_hf.py --input_dir checkpoints/mine --output_dir hf/mine
"""
_FROM_HF = """Turn a folder of Hugging Face's into a checkpoint, and write the configuration for it.

The result is loaded by any number of ranks; --tp and --pp write it as a run of such a layout would. At the
end the logits of both are compared, where transformers is installed; if they differ nothing is left behind.

example:
  python tools/ckpts/convert_hf_to_neox.py --input_dir hf/mine --output_dir checkpoints/from_hf
  ./deepy.py generate.py checkpoints/from_hf/model.yml configs/text_generation.yml
"""
_FROM_RAW = """Turn Llama's published files, params.json and consolidated.*.pth, into a checkpoint.

Releases 1 to 3.3, of any number of files. At the end the logits are compared with a plain computation on the
published weights; if they differ nothing is left behind.

example:
  python tools/ckpts/convert_raw_llama_weights_to_neox.py --input_dir llama --model_size 7B \\
    --output_dir checkpoints/llama-7B --num_output_shards 2
"""
_DTYPES = ("auto", "fp32", "bf16", "fp16")


def neox_to_hf(argv: Sequence[str] | None = None) -> None:
    """From a checkpoint to a folder of Hugging Face's."""
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
    parsed = parser.parse_args(argv)
    neox_logging.configure(rank=0)
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


def hf_to_neox(argv: Sequence[str] | None = None) -> None:
    """From a folder of Hugging Face's to a checkpoint."""
    parser = _parser(_FROM_HF)
    add = parser.add_argument
    _add_folders(
        parser, "with config.json, safetensors and tokenizer, as save_pretrained writes it"
    )
    add("--tp", type=int, default=1, metavar="N", help="ranks that share each weight; default: 1")
    add(
        "--pp",
        type=int,
        default=0,
        metavar="N",
        help="stages of a pipeline; default: 0, which is no pipeline",
    )
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
    """From Llama's published files to a checkpoint."""
    parser = _parser(_FROM_RAW)
    add = parser.add_argument
    _add_folders(parser, "with params.json, or with a folder of the name --model_size that has it")
    add("--model_size", "--model-size", metavar="NAME", help="such as 7B: a folder in --input_dir")
    add(
        "--num_output_shards",
        "--num-output-shards",
        type=int,
        default=1,
        metavar="N",
        help="ranks that share each weight; default: 1",
    )
    add(
        "--pipeline_parallel",
        "--pipeline-parallel",
        type=int,
        nargs="?",
        const=1,
        default=0,
        metavar="N",
        help="a file for each layer, as N stages of a pipeline (1 without a number) write them",
    )
    add(
        "--rope_scaling_factor",
        "--rope-scaling-factor",
        type=float,
        metavar="X",
        help="of use_scaled_rope; default: that of the published model of this width",
    )
    _add_common(parser)
    parsed = parser.parse_args(argv)
    neox_logging.configure(rank=0)
    root = Path(parsed.input_dir)
    has_one = parsed.model_size is None or (root / PARAMS_NAME).exists()
    done = import_folder(
        root if has_one else root / parsed.model_size,
        parsed.output_dir,
        layout=Layout(parsed.num_output_shards, parsed.pipeline_parallel),
        dtype=None if parsed.dtype == "auto" else parsed.dtype,
        tolerance=parsed.tolerance,
        read=partial(raw_llama_source, scaling_factor=parsed.rope_scaling_factor),
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
