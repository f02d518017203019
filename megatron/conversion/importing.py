"""From another project's folder to a checkpoint of ours, in any layout of ranks, and its configuration.

::

    <output_dir>/model.yml        the architecture, tokenizer and weights in keys of ours
    <output_dir>/tokenizer/       the tokenizer's files as they were
    <output_dir>/global_step0/    the weights, and the configuration once more
    <output_dir>/latest
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.manifest import Manifest
from megatron.checkpointing.publishing import Place, prepare, publish
from megatron.conversion.comparison import TOLERANCE, Comparison, compare
from megatron.conversion.families import Family
from megatron.conversion.foreign_weights import ForeignWeights
from megatron.conversion.new_checkpoint import RUN_FILE, NewModel, write_checkpoint
from megatron.conversion.our_checkpoint import PRECISIONS, WholeWeights
from megatron.conversion.output_folder import removed_on_failure, require_free
from megatron.conversion.parameters import parameters_of
from megatron.conversion.run_file import run_file, vocabulary_multiple
from megatron.conversion.sources import Source, hf_source
from megatron.conversion.tokenizer_files import copy_tokenizer, has_list_of_tokens, tokenizer_of
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.durable import write_file
from megatron.tokenizer import padded_vocab_size

_TOKENIZER_FOLDER = "tokenizer"


@dataclass(frozen=True)
class Layout:
    """For how many ranks the files are written. Any other numbers can load them too.

    Attributes:
        model: ranks that share each weight.
        pipe: stages of a pipeline; 0 for the plain form.
    """

    model: int = 1
    pipe: int = 0


@dataclass(frozen=True)
class Import:
    """What was done.

    Attributes:
        source, target: the folder and the checkpoint.
        run_file: the configuration that goes with it.
        family: of the folder.
        args: the configuration, checked.
        comparison: of the logits.
        notes: what a person should know, a line each.
        seconds: how long it took.
    """

    source: Path
    target: Path
    run_file: Path
    family: Family
    args: NeoXArgs
    comparison: Comparison
    notes: tuple[str, ...]
    seconds: float

    def text(self) -> str:
        """For people, a fact a line."""
        ranks = self.args.parallelism
        copies = ranks.ranks_per_replica
        start = f"./deepy.py --num_gpus {copies}" if copies > 1 else "./deepy.py"
        return "\n".join(
            [
                f"read     {self.source}: {self.family.architecture}",
                f"wrote    {self.target}: {self.args.model.precision}, model_parallel_size "
                f"{ranks.model_parallel_size}, pipe_parallel_size {ranks.pipe_parallel_size}, in "
                f"{self.seconds:.1f} s",
                f"compared {self.comparison.text()}",
                *(f"note     {note}" for note in self.notes),
                f"to do    {start} train.py {self.run_file} <a file with your data and optimizer>",
            ]
        )


def import_folder(
    source: str | Path,
    target: str | Path,
    *,
    layout: Layout | None = None,
    dtype: str | None = None,
    tolerance: float = TOLERANCE,
) -> Import:
    """The model of a folder of Hugging Face's: see :func:`import_model`.

    Args:
        source: with ``config.json``, safetensors and, if there is one, the tokenizer's files.
        target, layout, tolerance: see there.
        dtype: of the files, a key of :data:`~megatron.conversion.our_checkpoint.DTYPES`; None keeps the
            folder's.

    Raises:
        CheckpointError, ConfigError: see there.
    """
    require_free(Path(target).absolute(), "output_dir")
    return import_model(hf_source(Path(source), dtype), target, layout=layout, tolerance=tolerance)


def import_model(
    found: Source,
    target: str | Path,
    *,
    layout: Layout | None = None,
    tolerance: float = TOLERANCE,
) -> Import:
    """Write a model as a checkpoint, and the configuration for it.

    All is there whole, compared with the files that it was read from, or not at all. A layer is in memory
    at a time or, in the plain form, what one rank holds; for the comparison, the model in fp32.

    Args:
        found: the model.
        target: a folder that does not exist yet, or is empty.
        layout: of the files.
        tolerance: how far logits may be apart.

    Raises:
        CheckpointError: the source is not whole, or we have no words for its model, or the target is taken,
            or the two do not compute the same.
        ConfigError: the layout does not fit the model.
    """
    started = time.perf_counter()
    root = Path(target)
    require_free(root.absolute(), "output_dir")
    place = Place(root.absolute(), 0)
    with removed_on_failure(root, root):
        root.mkdir(parents=True, exist_ok=True)
        plan = _plan(found, root, layout or Layout())
        prepare(place)
        manifest = write_checkpoint(place, _model(found, plan))
        compared = _compare(place, manifest, found, plan.args, tolerance)
        write_file(root / RUN_FILE, plan.text.encode())
        publish(place)
    seconds = time.perf_counter() - started
    return Import(
        found.folder,
        root / place.final.name,
        root / RUN_FILE,
        found.family,
        plan.args,
        compared,
        (*found.notes, *plan.notes),
        seconds,
    )


@dataclass(frozen=True)
class _Plan:
    """What is to be written: the configuration, checked and as a file, and the rows of the embedding.

    ``notes`` are what a person should know about the tokenizer, a line each.
    """

    args: NeoXArgs
    text: str
    rows: int
    notes: tuple[str, ...]


def _plan(found: Source, root: Path, ranks: Layout) -> _Plan:
    """The configuration that goes with the model. Copies the tokenizer, which is part of it."""
    tokenizer = {
        key: value if key == "tokenizer_type" else str(root / _TOKENIZER_FOLDER / value)
        for key, value in copy_tokenizer(found.tokenizer_folders, root / _TOKENIZER_FOLDER).items()
    }
    keys: dict[str, Any] = {
        **found.keys,
        "precision": PRECISIONS[found.dtype],
        "model_parallel_size": ranks.model,
        "pipe_parallel_size": ranks.pipe,
        **tokenizer,
        "load": str(root),
        "finetune": True,
    }
    args = NeoXArgs.from_dict(keys)
    text_ids = tokenizer_of(args.tokenizer).vocab_size if tokenizer else found.vocab_size
    multiple = vocabulary_multiple(found.vocab_size, text_ids, ranks.model)
    keys["make_vocab_size_divisible_by"] = multiple
    args = NeoXArgs.from_dict(keys)
    rows = padded_vocab_size(text_ids, multiple, ranks.model)
    return _Plan(args, run_file(keys, str(found.folder)), rows, _notes(found, tokenizer, text_ids))


def _notes(found: Source, tokenizer: dict[str, str], text_ids: int) -> tuple[str, ...]:
    if not tokenizer:
        lists = [folder for folder in found.tokenizer_folders if has_list_of_tokens(folder)]
        why = (
            f"the tokenizer.model in {lists[0]} is a list of tokens for tiktoken, as Llama 3's: take the "
            "tokenizer.json of the same model"
            if lists
            else f"no tokenizer lies in {found.folder}"
        )
        return (f"{why}; {RUN_FILE} needs tokenizer_type, vocab_file",)
    if text_ids > found.vocab_size:
        return (f"the tokenizer has {text_ids} ids, of which the model knows {found.vocab_size}",)
    return ()


def _model(found: Source, plan: _Plan) -> NewModel:
    model = plan.args.model
    weights = ForeignWeights(
        found.folder, found.tensors, found.family, model, found.vocab_size, found.dtype
    )
    parameters = tuple(parameters_of(model, plan.rows))
    return NewModel(plan.args, plan.text, found.vocab_size, parameters, weights.read, found.folder)


def _compare(
    place: Place, manifest: Manifest, found: Source, args: NeoXArgs, tolerance: float
) -> Comparison:
    """Compare what was written with what was read."""
    info = CheckpointInfo(place.unfinished, place.step, manifest)
    weights = WholeWeights(info, args.model, found.vocab_size)
    return compare(
        args.model,
        found.vocab_size,
        weights.read,
        found.reference,
        dtype=found.dtype,
        tolerance=tolerance,
    )
