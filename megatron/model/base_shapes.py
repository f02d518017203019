"""The file of the base model's shapes, which a maximal update parametrisation starts from.

A YAML file with a line for each tensor, ``name: [outputs, inputs]``: names as in checkpoints, shapes of
whole tensors, whatever the layout of ranks. What of them is a width, the names tell; rows of vocabularies
and positions may differ between the base model and a wider one, and mean nothing.
"""

from __future__ import annotations

from pathlib import Path

import torch
import yaml

from megatron.errors import ConfigError
from megatron.model.layer_list import layer_factories
from megatron.model.parametrization import (
    STANDARD,
    Parametrization,
    Shape,
    Shapes,
    maximal_update,
)
from megatron.mpu.groups import ParallelGroups
from megatron.neox_arguments.sections import ModelArgs, MupArgs
from megatron.runtime.durable import replace_file
from megatron.runtime.world import World

_TITLE = "# Shapes of the base model of a maximal update parametrisation (use_mup): whole tensors, by name.\n"


def shapes_of(model: ModelArgs, padded_vocab_size: int) -> dict[str, Shape]:
    """Shapes of all tensors of ``model``, by their names in checkpoints. Nothing is allocated."""
    makers = layer_factories(
        model, padded_vocab_size=padded_vocab_size, groups=ParallelGroups(World())
    )
    with torch.device("meta"):
        layers = [make() for make in makers]
    return {
        f"sequential.{number}.{name}": tuple(parameter.shape)
        for number, layer in enumerate(layers)
        for name, parameter in layer.named_parameters()
    }


def write_base_shapes(path: Path, shapes: Shapes) -> None:
    """Write the file, at once: whoever reads it finds the old one or the new one.

    Raises:
        OSError: the disk refuses.
    """
    lines = (f"{name}: {list(shape)}\n" for name, shape in shapes.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join([_TITLE, *lines]).encode())


def read_base_shapes(path: Path) -> dict[str, Shape]:
    """The shapes that :func:`write_base_shapes` wrote.

    Raises:
        ConfigError: there is no such file, or it is none of this form.
    """
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"base_shapes_file: no such file: {path.absolute()}\n"
            "  to do: run the narrow model's configuration once with save_base_shapes: true"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"base_shapes_file: {path} cannot be read\n  found: {error}") from error
    if not isinstance(found, dict) or not found:
        raise _other_form(path, "no list of tensors")
    for name, shape in found.items():
        sizes = shape if isinstance(shape, list) else [None]
        if not all(type(size) is int and size > 0 for size in sizes):
            raise _other_form(path, f"{name}: {shape}")
    return {str(name): tuple(shape) for name, shape in found.items()}


def _other_form(path: Path, found: str) -> ConfigError:
    return ConfigError(
        f"base_shapes_file: {path} is not as save_base_shapes writes it\n  found: {found}\n"
        "  expected: lines such as sequential.0.word_embeddings.weight: [512, 64]"
    )


def parametrization_of(
    settings: MupArgs, model: ModelArgs, padded_vocab_size: int
) -> Parametrization:
    """How ``model`` is parametrised. Reads ``base_shapes_file`` with ``use_mup``.

    Raises:
        ConfigError: the file is missing or broken, or is one of another kind of model.
    """
    if not settings.use_mup:
        return STANDARD
    assert settings.base_shapes_file is not None, "the rules require it"
    path = Path(settings.base_shapes_file)
    base, here = read_base_shapes(path), shapes_of(model, padded_vocab_size)
    other = [name for name in here if name not in base or len(base[name]) != len(here[name])]
    other += [name for name in base if name not in here]
    if other:
        raise ConfigError(
            f"base_shapes_file: {path} is of another kind of model: {len(other)} tensors are in one of the "
            f"two only, or have other dimensions\n  found: {', '.join(other[:3])}{' …' * (len(other) > 3)}\n"
            "  expected: the same layers, biases and norms, of other widths\n"
            "  to do: run this configuration with a smaller hidden_size and save_base_shapes: true"
        )
    return maximal_update(settings, model, base=base, here=here)
