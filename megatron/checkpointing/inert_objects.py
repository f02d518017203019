"""Files of tensors among objects of other programs: the tensors are read, the objects are not made.

Such files hold loss scalers, argument namespaces or whole configurations beside the weights. A pickle says
which function to call for each of them; here every one but those that make tensors and plain containers is
answered with :class:`Inert`, which does nothing with what it is given. So no file can choose what runs.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


class Inert:
    """Stands in for any object and for any function that makes one.

    Attributes:
        fields: what the object would have held, where the file says so by name.
    """

    fields: dict[str, Any]

    def __new__(cls, *_args: object, **_named: object) -> Inert:
        made = super().__new__(cls)
        made.fields = {}
        return made

    def __init__(self, *_args: object, **_named: object) -> None:
        """Whatever it is made of is dropped."""

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.fields = {str(name): value for name, value in state.items()}

    def __call__(self, *_args: object, **_named: object) -> Inert:
        return Inert()

    def __setitem__(self, key: object, value: object) -> None:
        """An entry of a container of an unknown kind."""

    def append(self, value: object) -> None:
        """The same of a list."""

    def extend(self, values: object) -> None:
        """The same."""

    def add(self, value: object) -> None:
        """The same of a set."""


# What is needed for weights, by module and name. Storages torch looks up itself.
_MADE: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): torch.Size,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    **{
        ("torch", str(dtype).removeprefix("torch.")): dtype
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64)
    },
}


class _TensorsOnly(pickle.Unpickler):
    """An unpickler that knows :data:`_MADE` and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        return _MADE.get((module, name), Inert)


def load_among_objects(path: Path) -> Any:
    """The content of a file as torch writes them, its tensors mapped, its objects :class:`Inert`.

    Raises:
        BROKEN_FILE: see :mod:`~megatron.checkpointing.tensor_files`, where the file is not such a file.
    """
    # What torch needs of the module `pickle`.
    reader: Any = SimpleNamespace(
        __name__="pickle",
        Unpickler=_TensorsOnly,
        load=lambda file, **more: _TensorsOnly(file, **more).load(),
    )
    return torch.load(path, map_location="cpu", mmap=True, weights_only=False, pickle_module=reader)
