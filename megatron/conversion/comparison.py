"""Whether two forms of a model compute the same: logits of random tokens, in fp32 on the CPU.

Ours are computed a layer at a time, from the files of the checkpoint; theirs by other code than the
conversion's, from the folder as it is (transformers, for one of Hugging Face's), so that whatever a
conversion can get wrong shows: names, rows, fields of ``config.json``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from megatron.conversion.parameters import Parameter, parameters_of
from megatron.errors import CheckpointError
from megatron.model import layout
from megatron.model.layer_list import layer_factories
from megatron.model.word_embeddings import TiedHead
from megatron.mpu import ParallelGroups
from megatron.neox_arguments.sections import ModelArgs
from megatron.runtime.world import World

TOLERANCE = 1e-4
_TEXTS, _TOKENS = 2, 64


@dataclass(frozen=True)
class Reference:
    """Whose logits count.

    Attributes:
        name: in the possessive.
        logits: gives those [b, s, v] of tokens [b, s], in fp32; None where the package is missing.
    """

    name: str
    logits: Callable[[Tensor], Tensor] | None


@dataclass(frozen=True)
class Comparison:
    """How far two models' logits are apart.

    Attributes:
        of: whose logits ours were compared with.
        difference: the largest; None where it was not measured.
        largest: the largest logit.
        tokens: how many were read.
    """

    of: str
    difference: float | None
    largest: float = 0.0
    tokens: int = 0

    def text(self) -> str:
        """For people, in a line."""
        if self.difference is None:
            return (
                "not compared: transformers is not installed (pip install transformers), so nobody has "
                "seen yet that both compute the same"
            )
        return (
            f"logits of {self.tokens} random tokens differ from {self.of} by {self.difference:.1e} at "
            f"most, in fp32 (the largest is {self.largest:.3g})"
        )


def compare(
    model: ModelArgs,
    vocab_size: int,
    read: Callable[[Parameter], Tensor],
    reference: Reference,
    *,
    dtype: torch.dtype,
    tolerance: float = TOLERANCE,
    to_do: str = "nothing was written; look for what config.json and the weights do not agree on",
) -> Comparison:
    """Compare a model of ours with ``reference``.

    Args:
        model: the model's section of the configuration.
        vocab_size: ids that are compared.
        read: gives our parameters, their vocabulary cut to ``vocab_size``.
        reference: the same model, its weights rounded to ``dtype``.
        dtype: in which the new files are.
        tolerance: how far logits may be apart.
        to_do: what to tell people where they are further apart.

    Raises:
        CheckpointError: they are further apart.
    """
    if reference.logits is None:
        return Comparison(reference.name, None)
    length = min(_TOKENS, model.max_position_embeddings)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, vocab_size, (_TEXTS, length), generator=generator)

    def rounded(parameter: Parameter) -> Tensor:
        return read(parameter).to(dtype)

    ours = logits_of(model, vocab_size, rounded, tokens)
    theirs = reference.logits(tokens)[..., :vocab_size]
    difference = (ours - theirs).abs().max().item()
    found = Comparison(reference.name, difference, theirs.abs().max().item(), tokens.numel())
    if not difference <= tolerance:  # nor may it be no number
        raise CheckpointError(
            f"the two models do not compute the same\n  found: {found.text()}\n"
            f"  expected: {tolerance:g} at most\n  to do: {to_do}"
        )
    return found


@torch.no_grad()
def logits_of(
    model: ModelArgs, vocab_size: int, read: Callable[[Parameter], Tensor], tokens: Tensor
) -> Tensor:
    """Logits [b, s, v] of ``tokens`` [b, s] in fp32, with one layer in memory at a time."""
    by_layer: dict[int, list[Parameter]] = {}
    for parameter in parameters_of(model, vocab_size):
        by_layer.setdefault(parameter.layer, []).append(parameter)
    factories = layer_factories(model, padded_vocab_size=vocab_size, groups=ParallelGroups(World()))

    def layer(number: int) -> torch.nn.Module:
        made = factories[number]().eval()
        for parameter in by_layer.get(number, []):
            made.get_parameter(parameter.inner).copy_(read(parameter))
        return made

    x = tokens
    for number in range(len(factories)):
        made = layer(number)
        of_table = (layer(layout.EMBEDDING).word_embeddings,) if isinstance(made, TiedHead) else ()
        x = made(x, *of_table)
    return x


def transformers_reference(folder: Path, dtype: torch.dtype) -> Reference:
    """What transformers computes from ``folder``, with weights rounded to ``dtype``."""
    there = importlib.util.find_spec("transformers") is not None
    compute = partial(_by_transformers, folder, dtype=dtype)
    return Reference("transformers'", compute if there else None)


@torch.no_grad()
def _by_transformers(folder: Path, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    transformers = importlib.import_module("transformers")
    in_fp32 = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    progress = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder),
            local_files_only=True,
            attn_implementation="eager",
            **{in_fp32: torch.float32},
        ).eval()
    finally:
        if progress:
            transformers.utils.logging.enable_progress_bar()
    for parameter in model.parameters():  # not all: angles of rotations are no weights
        parameter.copy_(parameter.to(dtype))
    logits: Tensor = model(tokens).logits
    return logits
