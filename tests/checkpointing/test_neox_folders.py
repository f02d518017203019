"""Protects that what GPT-NeoX trained computes the same here: its folders, in every form, at every layout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from megatron.checkpointing import find_checkpoint
from megatron.errors import CheckpointError
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.training.loading import load_trained_model
from megatron.training.setup import build_parts
from tests.checkpointing.neox_readers import Reading, config_of, logits_of
from tests.checkpointing.neox_writer import STEP, Form, write_neox
from tests.conversion.hf_models import VOCAB, save_tokenizer
from tests.support.ranks import run_ranks

TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, 12))
FORMS = {
    "plain": Form(objects=True),
    "plain, old names": Form(old=True, configs=False),
    "layers": Form(layers=True, configs=False),
    "layers, old names, fp16": Form(layers=True, old=True, dtype=torch.float16, objects=True),
    "one rank": Form(size=1, old=True, layers=True),
}
CASES = ("gpt_neox parallel untied", "gpt_neox sequential tied", "llama 8/4")


class Written:
    """Folders that are written once, with the logits of the model in each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        save_tokenizer(folder)
        self._logits: dict[tuple[str, str], Any] = {}

    def get(self, case: str, form: str) -> tuple[Path, Any]:
        root = self.folder / re.sub(r"\W+", "-", f"{case} {form}")
        if (case, form) not in self._logits:
            model = write_neox(root, case, FORMS[form])
            with torch.no_grad():
                self._logits[case, form] = model(torch.from_numpy(TOKENS)).logits.numpy()
        return root, self._logits[case, form]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("neox"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
def test_one_process_computes_what_transformers_does(
    written: Written, case: str, form: str
) -> None:
    root, expected = written.get(case, form)
    (found,) = logits_of(World(), [Reading(root, case)], TOKENS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert np.abs(expected).max() > 1
    assert not (root / "sprung").exists()


@pytest.mark.ranks
def test_two_ranks_compute_it_too(written: Written) -> None:
    chosen = [
        ("gpt_neox parallel untied", "plain", {"model": 2}),
        ("gpt_neox parallel untied", "layers, old names, fp16", {"pipe": 2}),
        ("gpt_neox sequential tied", "plain, old names", {"pipe": 2}),
        ("gpt_neox sequential tied", "one rank", {"model": 2}),
        ("llama 8/4", "plain, old names", {"model": 2}),
        ("llama 8/4", "layers", {"pipe": 2}),
    ]
    readings, expected = [], []
    for case, form, layout in chosen:
        root, logits = written.get(case, form)
        readings.append(Reading(root, case, **layout))
        expected.append(logits)
    for of_rank in run_ranks(2, logits_of, readings, TOKENS):
        for found, logits in zip(of_rank, expected, strict=True):
            np.testing.assert_allclose(found, logits, rtol=0, atol=1e-4)


def refusal(reading: Reading, **changes: Any) -> str:
    args = NeoXArgs.from_dict(config_of(reading, **changes))
    with pytest.raises(CheckpointError) as caught:
        load_trained_model(args, build_parts(args, World()))
    assert len(str(caught.value).splitlines()) <= 10
    return str(caught.value)


def test_another_model_is_refused_with_all_differences(written: Written) -> None:
    case = "gpt_neox parallel untied"
    root, _ = written.get(case, "plain")
    text = refusal(
        Reading(root, case),
        num_layers=3,
        rotary_pct=1.0,
        gpt_j_residual=False,
        no_weight_tying=False,
    )
    assert "configuration of configs/" in text
    assert "num_layers: 2 → 3\n" in text
    assert "rotary_pct: 0.5 → 1.0\n" in text
    assert "gpt_j_residual: True → False\n" in text
    assert "no_weight_tying: True → False\n" in text


def test_shapes_speak_where_there_is_no_configuration(written: Written) -> None:
    case = "llama 8/4"
    root, _ = written.get(case, "layers")
    changes: dict[str, Any] = {"intermediate_size": 96, "norm": "layernorm", "num_kv_heads": 8}
    text = refusal(Reading(root, case), **changes, num_layers=1)
    assert "num_layers: 2 → 1\n" in text
    assert "norm: rmsnorm → layernorm\n" in text
    assert "rows of linear1: 96 → 64\n" in text
    assert "rows of query_key_value: 64 → 96\n" in text


def test_rows_that_no_padding_explains_are_not_dropped(written: Written, tmp_path: Path) -> None:
    """The folder says that its 112 rows are a multiple of 16: of 100 ids, not of 60."""
    case = "llama 8/4"
    root, _ = written.get(case, "plain")
    text = (written.folder / "tokenizer.json").read_text()
    for number in range(58, VOCAB - 2):
        text = re.sub(rf',?\s*"w{number}": \d+', "", text)
    (tmp_path / "fewer.json").write_text(text)
    message = refusal(Reading(root, case), vocab_file=str(tmp_path / "fewer.json"))
    assert "(112, 32), the model has (64, 32)" in message


def test_a_rank_that_is_missing(written: Written, tmp_path: Path) -> None:
    write_neox(tmp_path / "run", "llama 8/4", Form(size=2))
    (tmp_path / "run" / f"global_step{STEP}" / "mp_rank_00_model_states.pt").unlink()
    save_tokenizer(tmp_path)
    text = refusal(Reading(tmp_path / "run", "llama 8/4"))
    assert "the weights of model-parallel rank 0 are missing" in text


def test_our_own_folder_without_manifest_is_none_of_theirs(tmp_path: Path) -> None:
    write_neox(tmp_path, "llama 8/4", Form())
    info = find_checkpoint(tmp_path, neox=True)
    assert info is not None
    assert (info.step, info.manifest) == (STEP, None)
    (tmp_path / f"global_step{STEP}" / "configs" / "effective_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no manifest\.json in it"):
        find_checkpoint(tmp_path, neox=True)


def test_keys_of_a_part_of_a_configuration_are_no_contradiction(tmp_path: Path) -> None:
    case = "gpt_neox parallel untied"
    write_neox(tmp_path / "run", case, Form(size=1))
    file = tmp_path / "run" / f"global_step{STEP}" / "configs" / "model.yml"
    file.write_text(yaml.safe_dump({"rotary_pct": 0.25}))
    save_tokenizer(tmp_path)
    text = refusal(Reading(tmp_path / "run", case))
    assert re.findall(r"    (\w+):", text) == ["rotary_pct"]


def write_with_table(root: Path, *, drifted: bool) -> torch.Tensor:
    """A folder of two ranks with ``pos_emb: rpe``. Returns the whole table, [buckets, heads]."""
    write_neox(root, "gpt_neox parallel untied", Form(configs=False))
    table = torch.arange(32 * 8.0).view(32, 8)
    for rank, columns in enumerate(table.chunk(2, dim=1)):
        path = root / f"global_step{STEP}" / f"mp_rank_{rank:02d}_model_states.pt"
        content = torch.load(path, weights_only=False)
        for layer in (2, 3):
            copy = columns + (drifted and layer == 3)
            content["module"][f"sequential.{layer}.attention.rpe.weight"] = copy
        torch.save(content, path)
    return table


def test_a_table_that_layers_share_is_there_once(tmp_path: Path) -> None:
    """GPT-NeoX makes one table, which each layer has in its state."""
    table = write_with_table(tmp_path / "run", drifted=False)
    save_tokenizer(tmp_path)
    config = config_of(Reading(tmp_path / "run", "gpt_neox parallel untied"), pos_emb="rpe")
    args = NeoXArgs.from_dict(config)
    model, _ = load_trained_model(args, build_parts(args, World()))
    tables = {name: tensor for name, tensor in model.state_dict().items() if ".rpe." in name}
    assert list(tables) == ["sequential.2.attention.rpe.weight"]
    assert torch.equal(tables["sequential.2.attention.rpe.weight"], table)


def test_tables_that_have_drifted_apart_in_a_pipeline_are_refused(tmp_path: Path) -> None:
    write_with_table(tmp_path / "run", drifted=True)
    save_tokenizer(tmp_path)
    text = refusal(Reading(tmp_path / "run", "gpt_neox parallel untied"), pos_emb="rpe")
    assert "sequential.3.attention.rpe.weight is not sequential.2.attention.rpe.weight" in text
