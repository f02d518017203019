"""Protects the file of base shapes: whole tensors by name, and words for each way in which it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron.errors import ConfigError
from megatron.model import STANDARD, parametrization_of, shapes_of, write_base_shapes
from megatron.model.base_shapes import read_base_shapes
from megatron.neox_arguments.sections import MupArgs
from tests.support.models import tiny_args, tiny_model


@pytest.mark.parametrize("options", [{}, {"no_weight_tying": True, "pos_emb": "rpe"}])
def test_shapes_are_those_of_the_model(options: dict[str, object]) -> None:
    model = tiny_model(64, **options)
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes_of(tiny_args(**options), 64) == expected


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path, shapes = tmp_path / "new" / "base.yml", shapes_of(tiny_args(), 64)
    write_base_shapes(path, shapes)
    assert read_base_shapes(path) == shapes
    assert "\nsequential.0.word_embeddings.weight: [64, 32]\n" in path.read_text()


def settings(path: Path) -> MupArgs:
    return MupArgs(use_mup=True, base_shapes_file=str(path))


def test_without_mup_no_file_is_read(tmp_path: Path) -> None:
    off = MupArgs(base_shapes_file=str(tmp_path / "missing"))
    assert parametrization_of(off, tiny_args(), 64) is STANDARD


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file: "),
        ("a: [1", "cannot be read"),
        ("- 1", "found: no list of tensors"),
        ("", "found: no list of tensors"),
        ("a: [1, null]", r"found: a: \[1, None\]"),
        ("a: 3", "found: a: 3"),
        ("a: [3, 4]", "is of another kind of model: "),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "base.yml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=f"(?s)base_shapes_file: .*{said}"):
        parametrization_of(settings(path), tiny_args(), 64)


def test_another_depth_is_another_model(tmp_path: Path) -> None:
    write_base_shapes(tmp_path / "base.yml", shapes_of(tiny_args(num_layers=3), 64))
    with pytest.raises(ConfigError, match="sequential"):
        parametrization_of(settings(tmp_path / "base.yml"), tiny_args(), 64)
