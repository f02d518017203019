"""What the shapes of tensors do not show about a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megatron.checkpointing import CheckpointInfo
from megatron.checkpointing.same_model import model_differences, model_of
from megatron.errors import CheckpointError
from megatron.neox_arguments.sections import ModelArgs
from tests.checkpointing.folders_on_disk import make_checkpoint, make_manifest

MODEL = ModelArgs(num_layers=2, hidden_size=8, num_attention_heads=2, norm="layernorm")


def test_the_epsilon_of_another_norm_means_nothing() -> None:
    assert model_differences(MODEL, replace(MODEL, rms_norm_epsilon=0.5)) == []
    (line,) = model_differences(MODEL, replace(MODEL, layernorm_epsilon=0.5))
    assert line == "layernorm_epsilon: 1e-05 → 0.5"


def test_windows_are_compared_layer_by_layer() -> None:
    local = replace(MODEL, attention_config=[[["global", "local"], 1]], sliding_window_width=4)
    (line,) = model_differences(MODEL, local)
    assert line.startswith("attention_config, sliding_window_width")


def test_a_copy_of_the_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"effective_config\.json: cannot be read"):
        model_of(CheckpointInfo(folder, 1, make_manifest(1)))
