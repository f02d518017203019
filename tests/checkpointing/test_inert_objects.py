"""Protects that a file cannot choose what runs, and that its tensors are read all the same."""

from __future__ import annotations

import argparse
import builtins
import functools
import operator
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatron.checkpointing.inert_objects import Inert, load_among_objects


class Calls:
    """Pickled as a call of ``function`` with ``given``."""

    def __init__(self, function: Any, *given: Any) -> None:
        self.call = (function, given)

    def __reduce__(self) -> Any:
        return self.call


class Strange(OrderedDict[str, Any]):
    """A container that another program has made for itself."""


class StrangeList(list[Any]):
    """The same."""


def read(tmp_path: Path, content: Any) -> Any:
    torch.save(content, tmp_path / "file.pt")
    return load_among_objects(tmp_path / "file.pt")


def test_tensors_and_plain_containers(tmp_path: Path) -> None:
    table = torch.arange(6.0).view(2, 3)
    content = {
        "module": OrderedDict(
            a=table,
            b=table.t()[1:],
            c=torch.nn.Parameter(table.half()),
            d=torch.tensor([1, 2]),
        ),
        "plain": [1, 2.5, None, "x", (True, -1), {1, 2}],
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
    }
    found = read(tmp_path, content)
    for name, tensor in content["module"].items():  # type: ignore[attr-defined]
        assert torch.equal(found["module"][name], tensor)
        assert found["module"][name].dtype == tensor.dtype
    assert found["plain"][:5] == content["plain"][:5]  # type: ignore[index]
    assert found["size"] == (2, 3)
    assert found["dtype"] is torch.bfloat16


def test_fields_of_an_object_can_be_read(tmp_path: Path) -> None:
    found = read(tmp_path, argparse.Namespace(num_layers=2, inner=argparse.Namespace(x=1)))
    assert isinstance(found, Inert)
    assert found.fields["num_layers"] == 2
    assert found.fields["inner"].fields == {"x": 1}


@pytest.mark.parametrize(
    "function",
    [os.mkdir, builtins.open, builtins.eval, builtins.getattr, operator.attrgetter, torch.load],
)
def test_no_function_is_called(tmp_path: Path, function: Any) -> None:
    found = read(tmp_path, {"x": Calls(function, str(tmp_path / "made"), "w"), "y": 1})
    assert isinstance(found["x"], Inert)
    assert found["y"] == 1
    assert not (tmp_path / "made").exists()


class Mkdir(Calls):
    """Pickled as what ``functools.partial(os.mkdir)`` gives."""

    def __init__(self) -> None:
        super().__init__(functools.partial, os.mkdir)

    def __call__(self) -> None:
        """So that it may stand where pickle wants a function."""


def test_what_an_unknown_function_gives_does_nothing_either(tmp_path: Path) -> None:
    assert isinstance(read(tmp_path, Calls(Mkdir(), str(tmp_path / "made"))), Inert)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "thing",
    [Strange(a=1), StrangeList([1, 2]), np.arange(3), np.float64(1.5), frozenset({1}), 1j],
    ids=lambda thing: type(thing).__name__,
)
def test_unknown_containers_and_numbers_do_no_harm(tmp_path: Path, thing: Any) -> None:
    found = read(tmp_path, {"thing": thing, "after": torch.ones(1)})
    assert torch.equal(found["after"], torch.ones(1))
