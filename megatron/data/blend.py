"""Several datasets as one sequence of samples: whose turn is it, and which of its samples it gives.

A member of weight w (all of them sum to 1) gives its sample k = 0, 1, … at one of the turns from
⌊k / w⌋ to ⌈(k + 1) / w⌉ - 1; of the members that may give at a turn, the one whose last turn comes
first does. Unit jobs with such windows always fit (earliest deadline first is optimal, and giving each
member w of every turn would meet all windows), so that after any number n of turns each member has
given more than n × w - 1 and fewer than n × w + 1 samples: its share is exact to within one sample at
every prefix, not only in the long run. GPT-NeoX's own rule, the member that is furthest behind, does
not promise that for more than two.

Weights are whole numbers here, *units*: 0.7 and 0.3 are 7 and 3. After as many turns as there are units
each member has given exactly its units and everything starts again, so only one *period* is computed
and kept, or as much of it as the run takes. The order does not depend on how many samples are asked for.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# Weights whose period is longer, such as 0.123456789012345, are rounded to this many parts. That moves
# a member by less than one sample in 2^40.
_LONGEST_PERIOD: Final = 2**40


def units_of(weights: Sequence[float]) -> tuple[int, ...]:
    """The smallest whole numbers in the proportion of ``weights``, as they are written: 0.1 is a tenth.

    Args:
        weights: above 0.
    """
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(part.denominator for part in exact))
    units = [int(part * scale) for part in exact]
    divisor = math.gcd(*units)
    if sum(units) // divisor > _LONGEST_PERIOD:
        total = sum(exact)
        units = [max(1, round(part / total * _LONGEST_PERIOD)) for part in exact]
        divisor = math.gcd(*units)
    return tuple(unit // divisor for unit in units)


def document_weights(documents: Sequence[int], alpha: float) -> tuple[float, ...]:
    """Weights in the proportion of documents^alpha: 1 follows the data, 0 treats all members alike."""
    if alpha == 1:
        return tuple(float(count) for count in documents)
    largest = max(documents)  # keeps the powers within what a float can hold
    return tuple(max((count / largest) ** alpha, 1e-12) for count in documents)


def turns(units: Sequence[int], length: int) -> npt.NDArray[np.uint16]:
    """Whose turn it is, ``[length]``: positions in ``units``.

    Time is length × log(members). ``length`` may be anything; from ``sum(units)`` on it repeats.
    """
    total = sum(units)
    found = np.empty(length, np.uint16)
    given = [0] * len(units)
    # (first turn, member) of those that may not give yet; (last turn, member) of those that may.
    waiting = [(0, member) for member in range(len(units))]
    ready: list[tuple[int, int]] = []
    for turn in range(length):
        while waiting and waiting[0][0] <= turn:
            member = heapq.heappop(waiting)[1]
            end = -(-(given[member] + 1) * total // units[member])
            heapq.heappush(ready, (end, member))
        member = heapq.heappop(ready)[1]
        found[turn] = member
        given[member] += 1
        heapq.heappush(waiting, (given[member] * total // units[member], member))
    return found


def counts_before(members: npt.NDArray[np.uint16], number: int) -> npt.NDArray[np.int64]:
    """How often the member of each turn has given before, ``[turns]``: the sample that it gives.

    Args:
        members: ``[turns]``, see :func:`turns`.
        number: members in all.
    """
    order = np.argsort(members, kind="stable")
    counts = np.bincount(members, minlength=number)
    starts = np.cumsum(counts) - counts
    found = np.empty(len(members), np.int64)
    found[order] = np.arange(len(members)) - np.repeat(starts, counts)
    return found


def given_after(
    units: Sequence[int], members: npt.NDArray[np.uint16], samples: int
) -> npt.NDArray[np.int64]:
    """Samples that each member has given after ``samples`` turns, ``[members]``.

    Args:
        units: the weights.
        members: one period, or at least ``samples`` turns of it.
        samples: turns.
    """
    periods, rest = divmod(samples, sum(units))
    counts: npt.NDArray[Any] = np.bincount(members[:rest], minlength=len(units))
    return counts.astype(np.int64) + periods * np.asarray(units, np.int64)
