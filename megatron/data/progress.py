"""How far each dataset of a training blend has been read, so that the blend may change in mid-run.

A run reads its blend in *legs*. Within a leg datasets and weights stay the same: sample c of the run is
turn c - start of the leg, and dataset m gives at its k-th turn sample before[m] + k of its own order. Where
a resumed run names other datasets or weights a new leg begins, each dataset going on from where it stands
and a new one from its start: nothing is repeated and nothing left out in any of them. One that leaves is
remembered, should it come back.

That needs orders which do not depend on how much is read of them: ``data_order: epochs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Leg:
    """A stretch of the run with one blend.

    Attributes:
        start: samples of the run before it.
        before: samples that each dataset had given until then, by its key; of all that were ever read.
    """

    start: int = 0
    before: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """Where a run stands in its training data; what a checkpoint keeps of it.

    Attributes:
        order_key: of the blend of this leg.
        leg: the leg.
        consumed: samples of the run so far.
        given: samples that each dataset has given so far, by its key; of all that were ever read.
        paths: where those of this leg were found, by key.
    """

    order_key: str
    leg: Leg
    consumed: int
    given: Mapping[str, int]
    paths: Mapping[str, str]

    def next_leg(self) -> Leg:
        """The leg that begins here."""
        return Leg(self.consumed, dict(self.given))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Progress:
        """What :meth:`as_dict` gave."""
        return Progress(
            order_key=stored["order_key"],
            leg=Leg(**stored["leg"]),
            consumed=stored["consumed"],
            given=stored["given"],
            paths=stored["paths"],
        )
