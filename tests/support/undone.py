"""What is set up for a ``with`` block and taken down after it, also where the set-up fails half-way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TypeVar

_Undone = TypeVar("_Undone", bound="Undone")


class Undone(ABC):
    """Fill in :meth:`_set_up`, which tells ``_undo`` what has to be done for each of its steps."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    @abstractmethod
    def _set_up(self) -> None: ...

    def __enter__(self: _Undone) -> _Undone:
        try:
            self._set_up()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()
