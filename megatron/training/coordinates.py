"""The coordinate check: whether activations keep their size as a model gets wider, over the first steps.

It is how a parametrisation is tested (Yang et al., 2022, appendix D.1). Models of several widths, each
initialised and trained for a few steps by the run's own means on the run's own data; after each step the
mean size of a number in what each layer gives. Under a maximal update parametrisation it is about the same
at all widths; under the standard one it grows with the width, and learning rates do not carry over.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from megatron.data.datasets import build_datasets
from megatron.data.loader import StepBatch
from megatron.data.splits import SampleCounts
from megatron.logging import get_logger
from megatron.model import GPT2Model, layout, shapes_of, write_base_shapes
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.sections import ModelArgs
from megatron.runtime.durable import replace_file
from megatron.runtime.world import World
from megatron.training.batches import batches_of
from megatron.training.pipeline_step import step_of
from megatron.training.setup import (
    Parts,
    build_engine,
    build_model,
    build_parts,
    model_of,
    padding_id,
    step_settings,
)

log = get_logger(__name__)

# Optimizer steps whose forward passes are measured; the first is that of the initial weights.
STEPS = 5
# Models, each mup_width_scale times as wide as the one before; the first is the configuration's.
WIDTHS = 4


@dataclass(frozen=True)
class Coordinate:
    """Attributes: mean absolute value ``size`` of what ``layer`` gives after ``step`` updates of a model
    ``width`` (hidden_size) wide."""

    width: int
    step: int
    layer: str
    size: float


def save_base_shapes(args: NeoXArgs, world: World) -> None:
    """Write the shapes of the configuration's model into ``base_shapes_file``, by the first rank."""
    parts = build_parts(args, world)
    assert args.mup.base_shapes_file is not None, "the rules require it"
    path = Path(args.mup.base_shapes_file)
    if world.is_first:
        write_base_shapes(path, shapes_of(args.model, parts.padded_vocab))
    log.info("saved the shapes of a model %s wide in %s", f"{args.model.hidden_size:,}", path)


def check_coordinates(args: NeoXArgs, world: World) -> list[Coordinate]:
    """Measure models of all widths, tell what grows, write the table and the plot. All ranks call this.

    Raises:
        NeoXError: as in a run that trains.
    """
    parts = build_parts(args, world)
    batches = _batches(args, parts)
    found: list[Coordinate] = []
    for power in range(WIDTHS):
        wider = replace(args, model=widened(args.model, args.mup.mup_width_scale**power))
        found += measure(wider, parts, batches)
        log.info("measured a model %s wide", f"{wider.model.hidden_size:,}")
    for layer, slope in slopes(found).items():
        log.info("%s: x %.2f each time the width doubles", layer, 2**slope)
    if world.is_first:
        folder = Path(args.logging.log_dir or args.checkpointing.save or ".")
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "coord_check.csv", _table(found).encode())
        _draw(found, folder / "coord_check.png", uses_mup=args.mup.use_mup)
        log.info("coordinate check: %s", folder / "coord_check.csv")
    return found


def widened(model: ModelArgs, times: int) -> ModelArgs:
    """``model`` so many times as wide: as many heads, each of them wider."""
    sizes = ("hidden_size", "intermediate_size", "head_dim")
    given = {key: getattr(model, key) for key in sizes}
    return replace(model, **{key: size * times for key, size in given.items() if size is not None})


def measure(args: NeoXArgs, parts: Parts, batches: Sequence[StepBatch]) -> list[Coordinate]:
    """Train the model of ``args`` on ``batches``, one a step, at the highest learning rate."""
    engine = build_engine(args, parts, build_model(args, parts, partitioned=True))
    engine.train()
    settings = step_settings(args, parts)
    train_step, found = step_of(engine), []
    for step, batch in enumerate(batches):
        sizes: dict[str, list[float]] = {}
        with _watched(model_of(engine), sizes):
            train_step(engine, batch, settings, step=step, learning_rate=args.optim.lr)
        found += [
            Coordinate(args.model.hidden_size, step, layer, sum(each) / len(each))
            for layer, each in sizes.items()
        ]
    engine.destroy()
    return found


@contextmanager
def _watched(model: GPT2Model, sizes: dict[str, list[float]]) -> Iterator[None]:
    """Within the block, ``sizes`` gets the mean size of what each layer gives in each forward pass."""

    def note(layer: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            sizes.setdefault(layer, []).append(output.detach().float().abs().mean().item())

        return hook

    watched = [module.register_forward_hook(note(layer)) for layer, module in _layers(model)]
    try:
        yield
    finally:
        for handle in watched:
            handle.remove()


def _layers(model: GPT2Model) -> Iterator[tuple[str, nn.Module]]:
    """What is measured, by the name that a reader knows it under."""
    yield "embedding", model.sequential[layout.EMBEDDING]
    for number in model.block_numbers:
        block = model.sequential[layout.FIRST_BLOCK + number]
        yield f"layer {number} attention", block.attention
        yield f"layer {number} mlp", block.mlp
    yield "final norm", model.sequential[-2]
    yield "logits", model.sequential[-1]


def slopes(found: Sequence[Coordinate]) -> dict[str, float]:
    """By layer: the exponent a of size ~ width^a behind the last step (least squares over logarithms)."""
    last = max(each.step for each in found)
    sizes: dict[str, list[tuple[float, float]]] = {}
    for each in found:
        if each.step == last:
            point = (math.log(each.width), math.log(max(each.size, 1e-30)))
            sizes.setdefault(each.layer, []).append(point)
    return {layer: _slope(points) for layer, points in sizes.items()}


def _slope(points: Sequence[tuple[float, float]]) -> float:
    middle_x, middle_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    over = sum((x - middle_x) ** 2 for x, _ in points)
    slope: float = sum((x - middle_x) * (y - middle_y) for x, y in points) / over
    return slope


def _batches(args: NeoXArgs, parts: Parts) -> list[StepBatch]:
    """This rank's part of the first steps of the run."""
    batch = args.batch_sizes(parts.world.size)
    data = build_datasets(
        args.data,
        seq_length=args.model.seq_length,
        seed=args.training.seed,
        wanted=SampleCounts(train=STEPS * batch.global_batch_size, valid=0, test=0),
        world=parts.world,
        vocab_size=parts.tokenizer.vocab_size,
        data_parallel_size=batch.data_parallel_size,
        pad_id=padding_id(args, parts.tokenizer),
    )
    assert data.train is not None
    loader = batches_of(data.train, args, parts, batch, first_sample=0, num_steps=STEPS)
    try:
        return list(loader)
    finally:
        loader.close()


def _table(found: Sequence[Coordinate]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("width", "step", "layer", "mean_abs"))
    rows.writerows((each.width, each.step, each.layer, f"{each.size:.6g}") for each in found)
    return text.getvalue()


def _draw(found: Sequence[Coordinate], path: Path, *, uses_mup: bool) -> None:
    """One panel a step: a line for each layer over the widths. Without matplotlib, a line in the log."""
    try:
        import matplotlib  # noqa: PLC0415 - optional
    except ImportError:
        log.info("no plot: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("Agg")  # a file is made; no screen is needed
    from matplotlib import pyplot  # noqa: PLC0415 - after the choice of a backend

    figure, panels = pyplot.subplots(1, STEPS, figsize=(3.2 * STEPS, 4), sharey=True, dpi=120)
    for step, axes in enumerate(panels):
        lines: dict[str, dict[int, float]] = {}
        for each in found:
            if each.step == step:
                lines.setdefault(each.layer, {})[each.width] = each.size
        _draw_step(axes, step, lines)
    panels[0].set_ylabel("mean absolute value")
    panels[-1].legend(fontsize=6)
    figure.suptitle("maximal update" if uses_mup else "standard")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _draw_step(axes: Any, step: int, lines: Mapping[str, Mapping[int, float]]) -> None:
    for layer, sizes in lines.items():
        axes.plot(list(sizes), list(sizes.values()), marker=".", label=layer)
    axes.set(xscale="log", yscale="log", xlabel="width", title=f"after {step} steps")
    axes.grid(alpha=0.3)
