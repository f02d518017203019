"""Print what is in a checkpoint, or compare two, tensor by tensor, whatever their forms.

Checkpoints of any layout, layout-free ones, GPT-NeoX's, folders of Hugging Face's, Llama's published files:
all are seen as whole models under the names of this project, without the padding of the vocabulary where that
is known. One tensor is in memory at a time.

The exit status is 0 if two models are equal, 1 if they differ, 2 if one cannot be read.

example:
  python tools/ckpts/inspect_checkpoints.py checkpoints/mine --stats
  python tools/ckpts/inspect_checkpoints.py checkpoints/mine hf/mine --diff
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from megatron import logging as neox_logging
from megatron.conversion.any_form import Model, open_model

# Numbers that are looked at together.
_CHUNK = 2**20


def main(argv: Sequence[str] | None = None) -> int:
    """The command line of ``tools/ckpts/inspect_checkpoints.py``. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folders", nargs="+", metavar="FOLDER", help="one to print, two (or one,other) to compare")
    add("--diff", "-d", action="store_true", help="of two, only what differs")
    add("--compare", "-c", action="store_true", help="accepted: two folders are always compared")
    add("--stats", "-s", action="store_true", help="of one, look at the numbers too")
    add("--tolerance", type=float, default=0.0, metavar="X", help="deviation that counts as equal")
    add("--iteration", type=int, metavar="N", help="step of the checkpoints; default: the latest")
    add(
        "--config_file",
        "--config-file",
        nargs="+",
        default=(),
        metavar="FILE",
        help="configuration of a checkpoint that has none in it",
    )
    add(
        "--vocab_size",
        "--vocab-size",
        type=int,
        metavar="N",
        help="ids of a checkpoint that does not say which rows are padding (GPT-NeoX's)",
    )
    parsed = parser.parse_args(argv)
    folders = _folders(parsed.folders)
    if len(folders) > 2:
        parser.error("one or two folders")
    neox_logging.configure(rank=0)
    models = [
        open_model(folder, parsed.iteration, parsed.config_file, parsed.vocab_size)
        for folder in folders
    ]
    if len(models) == 1:
        for line in described(models[0], with_numbers=parsed.stats):
            sys.stdout.write(f"{line}\n")
        return 0
    return _print_comparison(*models, tolerance=parsed.tolerance, only_different=parsed.diff)


def _folders(given: Sequence[str]) -> list[str]:
    """The folders meant: ``one,other`` is two, as in GPT-NeoX, unless it is the name of one."""
    return [
        folder for text in given for folder in ([text] if Path(text).exists() else text.split(","))
    ]


def described(model: Model, *, with_numbers: bool) -> Iterator[str]:
    """What is in ``model``, a line for each parameter.

    Args:
        with_numbers: read them and say mean, standard deviation, largest magnitude.
    """
    yield f"{model.folder}: {model.form}"
    width = max(len(parameter.name) for parameter in model.parameters)
    for parameter in model.parameters:
        line = f"  {parameter.name:{width}}  {_shape(parameter.shape)}"
        yield f"{line}  {_statistics(model.read(parameter))}" if with_numbers else line
    yield f"{len(model.parameters)} tensors, {model.numbers:,} numbers"


def _statistics(tensor: Tensor) -> str:
    count, total, squares, largest, broken = 0, 0.0, 0.0, 0.0, 0
    for chunk in _chunks(tensor):
        numbers = chunk.double()
        finite = numbers[numbers.isfinite()]
        broken += chunk.numel() - finite.numel()
        count += finite.numel()
        total += finite.sum().item()
        squares += finite.square().sum().item()
        largest = max(largest, finite.abs().max().item() if finite.numel() else 0.0)
    mean = total / max(1, count)
    deviation = math.sqrt(max(0.0, squares / max(1, count) - mean**2))
    found = f"mean {mean:+.3e}  std {deviation:.3e}  largest {largest:.3e}"
    return f"{found}  {broken:,} are no finite numbers" if broken else found


@dataclass(frozen=True)
class Deviation:
    """How two tensors of the same name are apart.

    Attributes:
        name: of both.
        shapes: of the first and the other.
        largest: between two numbers; infinite where one is no number, or the shapes differ.
        different: how many numbers differ.
    """

    name: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    largest: float
    different: int

    def text(self) -> str:
        """For people, without the name."""
        one, other = self.shapes
        if one != other:
            return f"{_shape(one)} and {_shape(other)}"
        if not self.different:
            return f"{_shape(one)}  equal"
        return (
            f"{_shape(one)}  {self.different:,} of {math.prod(one):,} numbers differ, by "
            f"{self.largest:.3e} at most"
        )


def deviations(one: Model, other: Model) -> Iterator[Deviation]:
    """Compare what both models have, one tensor after the other."""
    there = {parameter.name: parameter for parameter in other.parameters}
    for parameter in one.parameters:
        counterpart = there.get(parameter.name)
        if counterpart is None:
            continue
        shapes = (parameter.shape, counterpart.shape)
        if parameter.shape != counterpart.shape:
            yield Deviation(parameter.name, shapes, math.inf, parameter.numbers)
            continue
        found = _apart(one.read(parameter), other.read(counterpart))
        yield Deviation(parameter.name, shapes, *found)


def _apart(one: Tensor, other: Tensor) -> tuple[float, int]:
    """The largest deviation of two tensors of one shape, and how many numbers differ."""
    largest, different = 0.0, 0
    for mine, theirs in zip(_chunks(one), _chunks(other), strict=True):
        if mine.dtype == theirs.dtype and torch.equal(mine, theirs):
            continue
        a, b = mine.double(), theirs.double()
        differs = (a != b) & ~(a.isnan() & b.isnan())
        count = int(differs.sum())
        if count:
            different += count
            gap = (a - b).abs()[differs].nan_to_num(nan=math.inf, posinf=math.inf)
            largest = max(largest, gap.max().item())
    return largest, different


def _print_comparison(one: Model, other: Model, *, tolerance: float, only_different: bool) -> int:
    write = sys.stdout.write
    write(f"one    {one.folder}: {one.form}\nother  {other.folder}: {other.form}\n")
    names = [{parameter.name for parameter in model.parameters} for model in (one, other)]
    lonely = [
        (whose, parameter.name)
        for whose, model, there in (("one", one, names[1]), ("other", other, names[0]))
        for parameter in model.parameters
        if parameter.name not in there
    ]
    for whose, name in lonely:
        write(f"  {name}  only in {whose}\n")
    worst: Deviation | None = None
    apart, count = 0, 0
    for deviation in deviations(one, other):
        count += 1
        is_apart = deviation.largest > tolerance
        apart += is_apart
        if is_apart and (worst is None or deviation.largest > worst.largest):
            worst = deviation
        if is_apart or not only_different:
            write(f"  {deviation.name}  {deviation.text()}\n")
    more = f", the furthest by {worst.largest:.3e} in {worst.name}" if worst else ""
    write(
        f"{count} tensors in both: {count - apart} equal"
        + (f" within {tolerance:g}" if tolerance else "")
        + f", {apart} differ{more}; {len(lonely)} in one alone\n"
    )
    return int(bool(apart or lonely))


def _chunks(tensor: Tensor) -> Iterator[Tensor]:
    flat = tensor.flatten()
    return (flat[start : start + _CHUNK] for start in range(0, flat.numel(), _CHUNK))


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
