"""A model in any form that is known here, seen as the parameters of a whole model of ours.

Checkpoints of ours that ranks wrote or that are layout-free, GPT-NeoX's, folders of Hugging Face's, Llama's
published files: each gives its parameters under our names, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from megatron.checkpointing.universal import VALUE, Shape
from megatron.checkpointing.universal_files import open_store
from megatron.checkpointing.universal_pieces import Part, PartReader, whole_shapes
from megatron.conversion.foreign_weights import ForeignWeights
from megatron.conversion.hf_folder import CONFIG_NAME
from megatron.conversion.our_checkpoint import PRECISIONS, Origin, find_origin
from megatron.conversion.parameters import Parameter, parameters_of
from megatron.conversion.raw_folder import PARAMS_NAME
from megatron.conversion.sources import hf_source, raw_source
from megatron.errors import CheckpointError
from megatron.model import layout
from megatron.neox_arguments import NeoXArgs


@dataclass(frozen=True)
class Model:
    """A model in a folder.

    Attributes:
        folder: where it lies.
        form: what kind of folder, for people.
        parameters: of the whole model, in the order of the layers, without padding of the vocabulary where
            the folder says what is padding.
        read: gives one of them on the CPU; not to be written to.
    """

    folder: Path
    form: str
    parameters: Sequence[Parameter]
    read: Callable[[Parameter], Tensor]

    @property
    def numbers(self) -> int:
        """How many there are in all parameters."""
        return sum(parameter.numbers for parameter in self.parameters)


def open_model(
    folder: str | Path,
    iteration: int | None = None,
    config_files: Sequence[str | Path] = (),
    vocab_size: int | None = None,
) -> Model:
    """The model in ``folder``, whatever its form. No weight is read yet.

    Args:
        folder: a run's checkpoints, one of them (``global_step<N>``), or another program's folder.
        iteration: of a run's checkpoints, the step to take instead of the latest.
        config_files: of a checkpoint without a configuration in it.
        vocab_size: ids of one that does not say which rows are padding.

    Raises:
        CheckpointError: there is no model in it, or it is not whole.
        ConfigError: the configuration is not right.
    """
    path = Path(folder)
    if not path.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    if (path / CONFIG_NAME).exists() or (path / PARAMS_NAME).exists():
        return _foreign(path)
    origin = find_origin(path, iteration, config_files, any_kind=True)
    return _ours(origin, origin.vocab_size or vocab_size)


def _ours(origin: Origin, ids: int | None) -> Model:
    """What lies in a checkpoint, whether or not it is a whole model of the configuration."""
    model = origin.model
    store = open_store(origin.info, with_optimizer=False, model=model, vocab_size=ids)
    reader = PartReader(store, model)
    parameters = [
        _parameter(name, shape, ids) for name, shape in whole_shapes(store, model).items()
    ]
    return Model(
        origin.info.path,
        origin.info.form,
        sorted(parameters, key=lambda parameter: parameter.layer),
        lambda parameter: reader.read(VALUE, Part(parameter.name, parameter.shape)),
    )


def _parameter(name: str, shape: Shape, ids: int | None) -> Parameter:
    found = Parameter.of(name, shape)
    if ids is None or not layout.has_vocabulary_rows(found.inner):
        return found
    return Parameter.of(name, (min(ids, shape[0]), *shape[1:]))


def _foreign(folder: Path) -> Model:
    is_raw = not (folder / CONFIG_NAME).exists()
    source = raw_source(folder, None) if is_raw else hf_source(folder, None)
    model = NeoXArgs.from_dict(source.keys).model
    weights = ForeignWeights(
        folder, source.tensors, source.family, model, source.vocab_size, source.dtype
    )
    form = f"{source.family.architecture}, {PRECISIONS[source.dtype]}"
    return Model(folder, form, tuple(parameters_of(model, source.vocab_size)), weights.read)
