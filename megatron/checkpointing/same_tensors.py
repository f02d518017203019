"""Whether the tensors of a checkpoint are a model's, by their names and shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import nn

from megatron.checkpointing.universal import Shape
from megatron.errors import CheckpointError


def require_same_tensors(
    folder: Path,
    there: Mapping[str, Shape],
    here: Mapping[str, Shape],
    module: nn.Module,
    *,
    the_same: Callable[[str, Shape, Shape], bool],
) -> None:
    """Compare what a checkpoint holds with what a rank needs.

    Args:
        folder: the checkpoint's.
        there: the shapes in it, by name.
        here: the shapes that are needed.
        module: the rank's model; a stage of a pipeline knows which names belong to the others.
        the_same: whether a parameter of a name fits, of its shape there and here.

    Raises:
        CheckpointError: it is another model: all differences in one message.
    """
    is_elsewhere = getattr(module, "is_elsewhere", lambda _: False)
    kinds = {
        "not there": [name for name in here if name not in there],
        "not in the model": [name for name in there if name not in here and not is_elsewhere(name)],
        "shapes": [
            f"{name}: {there[name]}, the model has {shape}"
            for name, shape in here.items()
            if name in there and not the_same(name, there[name], shape)
        ],
    }
    if not any(kinds.values()):
        return
    lines = [f"the weights in {folder} are not this model's"]
    for title, found in kinds.items():
        if found:
            more = f" and {len(found) - 2} more" if len(found) > 2 else ""
            lines.append(f"  {title}: {'; '.join(found[:2])}{more}")
    lines.append(
        "  to do: use the model keys of the run that wrote it (a first dimension that differs in "
        "the embedding alone: tokenizer and make_vocab_size_divisible_by)"
    )
    raise CheckpointError("\n".join(lines))
