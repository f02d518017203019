"""A checkpoint of ours as a whole model, whatever layout of ranks wrote it, a parameter at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron.checkpointing.find import find_checkpoint
from megatron.checkpointing.folders import CONFIG_FOLDER, EFFECTIVE_CONFIG_NAME, step_of
from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.same_model import model_of
from megatron.checkpointing.universal import VALUE
from megatron.checkpointing.universal_files import open_store
from megatron.checkpointing.universal_pieces import Part, PartReader, whole_shapes
from megatron.conversion.parameters import Parameter, listed, parameters_of
from megatron.errors import CheckpointError
from megatron.model import layout
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.sections import ModelArgs, TokenizerArgs

# By the names that configurations and command lines have for them.
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
}
# What `precision` calls each of them.
PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bfloat16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Origin:
    """A checkpoint and what it is of.

    Attributes:
        info: the checkpoint.
        model: the model's section of its configuration.
        tokenizer: the tokenizer's section.
        vocab_size: ids of the tokenizer that it was trained with, where it says so.
    """

    info: CheckpointInfo
    model: ModelArgs
    tokenizer: TokenizerArgs
    vocab_size: int | None


def find_origin(
    folder: str | Path,
    iteration: int | None = None,
    config_files: Sequence[str | Path] = (),
    *,
    any_kind: bool = False,
) -> Origin:
    """The checkpoint in ``folder``, with the configuration that lies in it.

    Args:
        folder: a run's checkpoints, or one of them (``global_step<N>``).
        iteration: the step to take instead of the latest.
        config_files: to be read instead of the checkpoint's own configuration.
        any_kind: of model, not only one that a family of Hugging Face may express.

    Raises:
        CheckpointError: there is no checkpoint, or it does not say what it is of.
        ConfigError: the configuration is not right.
    """
    root = Path(folder)
    step = step_of(root.absolute().name)
    if step is not None and root.is_dir():
        root, iteration = root.absolute().parent, step
    info = find_checkpoint(root, iteration, foreign=True)
    if info is None:
        raise CheckpointError(f"{folder} holds no checkpoint")
    own = info.path / CONFIG_FOLDER
    if not config_files and (own / EFFECTIVE_CONFIG_NAME).exists():
        model = model_of(info)
        # Its content is in order: the model was read from it.
        values = json.loads((own / EFFECTIVE_CONFIG_NAME).read_bytes())
    else:
        args = _read_configuration(info, config_files or sorted(own.glob("*.yml")))
        model, values = args.model, args.flat()
    if not any_kind:
        _require_no_more(info, values)
    names = TokenizerArgs.__dataclass_fields__
    tokenizer = TokenizerArgs(**{name: values[name] for name in names if name in values})
    return Origin(info, model, tokenizer, info.state.get("vocab_size"))


def _read_configuration(info: CheckpointInfo, files: Sequence[str | Path]) -> NeoXArgs:
    if not files:
        raise CheckpointError(
            f"{info.path} has no configuration in it\n  expected: {CONFIG_FOLDER}/*.yml\n"
            "  to do: name the files that the run was started with: --config_file"
        )
    return NeoXArgs.from_ymls(files)


# Keys outside the model's section that change what it computes.
_MORE = ("use_mup", "soft_prompt_tuning")


def _require_no_more(info: CheckpointInfo, values: Mapping[str, Any]) -> None:
    for key in _MORE:
        found = values.get(key)
        if found and not (isinstance(found, Mapping) and not found.get("enabled", True)):
            raise CheckpointError(
                f"{info.path}: {key}\n  found: {found}\n  expected: nothing: no family of Hugging Face "
                "that is known here has it\n  to do: convert a model that was trained without"
            )


class WholeWeights:
    """The weights of a checkpoint, the vocabulary cut to the ids that are wanted.

    Args:
        info: the checkpoint.
        model: the model's section of the configuration.
        vocab_size: ids that are wanted; None takes all rows there are.

    Attributes:
        model: as given.
        vocab_size: rows of the embedding and the head.
        parameters: of the whole model, in the order of the layers.

    Raises:
        CheckpointError: it holds another model than ``model``.
    """

    def __init__(self, info: CheckpointInfo, model: ModelArgs, vocab_size: int | None) -> None:
        store = open_store(info, with_optimizer=False, model=model, vocab_size=vocab_size)
        self.model = model
        shapes = whole_shapes(store, model)
        rows = _vocabulary_rows(info, shapes)
        self.vocab_size = rows if vocab_size is None else min(vocab_size, rows)
        self.parameters = tuple(parameters_of(model, self.vocab_size))
        _require_all(info, self.parameters, shapes)
        self._reader = PartReader(store, model)

    def read(self, parameter: Parameter) -> Tensor:
        """One of :attr:`parameters` in fp32, on the CPU; not to be written to."""
        return self._reader.read(VALUE, Part(parameter.name, parameter.shape))


def _vocabulary_rows(info: CheckpointInfo, shapes: dict[str, tuple[int, ...]]) -> int:
    rows = [shape[0] for name, shape in shapes.items() if _has_ids(name)]
    if not rows:
        raise CheckpointError(f"{info.path} holds no embedding: its files are not all there")
    return rows[0]


def _has_ids(name: str) -> bool:
    return layout.has_vocabulary_rows(name.split(".", 2)[2])


def _require_all(
    info: CheckpointInfo, wanted: Sequence[Parameter], there: dict[str, tuple[int, ...]]
) -> None:
    """Compare names and shapes with those of the model that the configuration describes."""
    known = {parameter.name: parameter.shape for parameter in wanted}
    wrong = [f"{name} is not there" for name in known if name not in there]
    wrong += [f"{name} is no parameter of it" for name in there if name not in known]
    wrong += [
        f"{name} is {there[name]}, it has {shape}"
        for name, shape in known.items()
        if name in there
        and there[name] != shape
        and not (_has_ids(name) and there[name][0] >= shape[0] and there[name][1:] == shape[1:])
    ]
    if wrong:
        raise CheckpointError(
            f"{info.path} is not of the model that its configuration describes\n  found:\n{listed(wrong)}\n"
            "  to do: name the configuration that it was made with: --config_file"
        )
