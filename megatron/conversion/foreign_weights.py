"""The tensors of another project's folder, as the parameters of a model of ours."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from megatron.conversion.families import Family
from megatron.conversion.parameters import Parameter, counterpart, listed, parameters_of
from megatron.errors import CheckpointError
from megatron.model import layout
from megatron.neox_arguments.sections import ModelArgs


class Tensors(Protocol):
    """The tensors of a whole model, read one at a time.

    Attributes:
        names: of all.
        dtype: of one that stands for all.
    """

    @property
    def names(self) -> Set[str]: ...
    @property
    def dtype(self) -> torch.dtype: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> Tensor:
        """A tensor on the CPU."""
        ...


class ForeignWeights:
    """Reads parameters of ours out of the files of a family. All names and shapes are compared first.

    Args:
        folder: of the model, for messages.
        tensors: that it holds.
        family: its row of the table.
        model: what their configuration says, as a section of ours.
        vocab_size: ids of the model.
        dtype: in which tensors are wanted.

    Raises:
        CheckpointError: the files hold other tensors than their configuration describes.
    """

    def __init__(
        self,
        folder: Path,
        tensors: Tensors,
        family: Family,
        model: ModelArgs,
        vocab_size: int,
        dtype: torch.dtype,
    ) -> None:
        self._folder = folder
        self._tensors = tensors
        self._model = model
        self._dtype = dtype
        # What the table calls a tensor → what the file calls it.
        self._names = {_usual_name(family, name): name for name in self._tensors.names}
        self._places = {
            parameter.name: counterpart(family, parameter)
            for parameter in parameters_of(model, vocab_size)
        }
        self._require_all(family)

    def read(self, parameter: Parameter) -> Tensor:
        """One of our parameters, its vocabulary filled up with rows of zeros to the rows that it has."""
        place = self._places[parameter.name]
        pieces = [self._tensors.read(self._names[name]) for name in place.names]
        whole = place.join(self._model, pieces).to(self._dtype)
        if not layout.has_vocabulary_rows(parameter.inner):
            return whole
        missing = parameter.shape[0] - whole.size(0)
        return torch.cat((whole, whole.new_zeros(missing, *whole.shape[1:]))) if missing else whole

    def _require_all(self, family: Family) -> None:
        wanted = {
            name: shape
            for place in self._places.values()
            for name, shape in place.shapes(self._model).items()
        }
        wrong = [f"{name} is not there" for name in wanted if name not in self._names]
        wrong += [
            f"{name} is {found}, expected {shape}"
            for name, shape in wanted.items()
            if name in self._names and (found := self._tensors.shape(self._names[name])) != shape
        ]
        allowed = (*family.leftovers, *self._heads_of_tied_models(family))
        wrong += [
            f"{name} is one too many"
            for name in sorted(self._names.keys() - wanted.keys())
            if not name.endswith(allowed)
        ]
        if wrong:
            raise CheckpointError(
                f"{self._folder} does not hold the {family.architecture} that its configuration describes\n"
                f"  found:\n{listed(wrong)}"
            )

    def _heads_of_tied_models(self, family: Family) -> tuple[str, ...]:
        """Some files of tied models hold the embedding a second time."""
        head = family.places["final_linear"].names
        return () if self._model.no_weight_tying else tuple(f"{name}.weight" for name in head)


def _usual_name(family: Family, name: str) -> str:
    module, _, kind = name.rpartition(".")
    return f"{family.other_names.get(module, module)}.{kind}"
