"""A checkpoint seen as one whole model, whatever layout of ranks wrote it.

Every parameter of the whole model has some *states*: its value in fp32 (``fp32``) and what the optimizer
keeps for each of its numbers (``exp_avg`` and ``exp_avg_sq`` of Adam). A :class:`ParameterStore` gives
them one tensor at a time. There are two kinds: the files of the ranks that trained
(:mod:`~megatron.checkpointing.universal_ranks`), and the layout-free form, which has a file for each
state of each whole parameter (:mod:`~megatron.checkpointing.universal_files`). To a reader the latter is
a model that one rank held.

Names are those of the plain form, ``sequential.<layer>.<name in the layer>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

Shape = tuple[int, ...]

# The value of a parameter, as DeepSpeed's universal checkpoints call it.
VALUE = "fp32"


@dataclass(frozen=True)
class EngineState:
    """What an engine holds beside tensors.

    Attributes:
        optimizer_step: updates that the optimizer has made, by which Adam corrects its averages; None
            without optimizer state.
        skipped_steps: steps without an update, because of an overflow in fp16.
        global_samples: DeepSpeed's count of samples.
        loss_scaler: the fields of DeepSpeed's loss scaler, for a run in fp16; else empty.
    """

    optimizer_step: float | None = None
    skipped_steps: int = 0
    global_samples: int = 0
    loss_scaler: Mapping[str, float | bool | None] | None = None


@dataclass(frozen=True)
class WholeModel:
    """What the manifest of a layout-free checkpoint says about its tensors.

    Attributes:
        parameters: each whole parameter's shape by its name, in the order of the layers.
        states: the states that each of them has; :data:`VALUE` is the first.
        engine: what the engine held beside them.
    """

    parameters: Mapping[str, Shape]
    states: tuple[str, ...]
    engine: EngineState

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> WholeModel:
        """What a manifest holds of it. Raises KeyError, TypeError or AttributeError for anything else."""
        return WholeModel(
            {name: tuple(shape) for name, shape in stored["parameters"].items()},
            tuple(stored["states"]),
            EngineState(**stored["engine"]),
        )


class ParameterStore(Protocol):
    """Parameters as some ranks held them.

    Attributes:
        size: model-parallel ranks that share each weight.
        shapes: the shape of a rank's part of each parameter, by its name in the plain form; all ranks'
            parts have the same.
        states: what there is of each parameter; :data:`VALUE` is the first.
        engine: what the engine held beside tensors.
        vocab_size: ids of the tokenizer; rows behind them are padding. None where it is not known.
    """

    @property
    def size(self) -> int: ...
    @property
    def shapes(self) -> Mapping[str, Shape]: ...
    @property
    def states(self) -> tuple[str, ...]: ...
    @property
    def engine(self) -> EngineState: ...
    @property
    def vocab_size(self) -> int | None: ...

    def read(self, state: str, name: str, rank: int) -> Tensor:
        """Model-parallel rank ``rank``'s part of a parameter, on the CPU; not to be written to.

        It is a view of a mapped file where that is possible: only what is used of it is read.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        ...


def split_name(name: str) -> tuple[str, str]:
    """``sequential.<layer>`` and the name inside the layer."""
    first, layer, inner = name.split(".", 2)
    return f"{first}.{layer}", inner
