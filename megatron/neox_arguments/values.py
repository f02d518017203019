"""Values that stay as they were checked: dicts and lists that nothing can change any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


class FrozenDict(dict[str, Any]):
    """A dict that refuses every change.

    It stays a ``dict`` so that ``json``, ``pickle`` and DeepSpeed take it as one.
    """

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("the configuration is frozen: take a copy with thaw() to change it")

    __setitem__ = _refuse
    __delitem__ = _refuse
    __ior__ = _refuse
    clear = _refuse
    pop = _refuse
    popitem = _refuse
    setdefault = _refuse
    update = _refuse

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[dict[str, Any]]]:
        # The default way of unpickling a dict subclass sets items one by one, which is refused here.
        return (FrozenDict, (dict(self),))


def freeze(value: Any) -> Any:
    """``value`` with every dict in it frozen and every list a tuple."""
    if isinstance(value, dict):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value


def thaw(value: Any) -> Any:
    """A deep copy of ``value`` in plain dicts and lists, as JSON would hold it."""
    if isinstance(value, dict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    return value
