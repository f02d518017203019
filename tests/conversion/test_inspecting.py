"""Protects what the inspection says of a checkpoint, and that two are equal or not, whatever their forms."""

from __future__ import annotations

import json
import math
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from megatron.checkpointing.reshard import reshard
from megatron.conversion.any_form import Model, open_model
from megatron.conversion.importing import Layout, import_folder, import_model
from megatron.conversion.inspecting import _CHUNK, described, deviations, main
from megatron.conversion.parameters import Parameter
from megatron.conversion.sources import raw_source
from megatron.errors import CheckpointError
from tests.checkpointing.neox_writer import STEP, Form, write_neox
from tests.conversion.hf_models import VOCAB, make_model, save_model
from tests.conversion.raw_files import write_raw
from tests.support.doors import door

CASE = "llama 8/4"


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights in every form."""
    root = tmp_path_factory.mktemp("forms")
    save_model(CASE, root / "hf")
    import_folder(root / "hf", root / "ranks", layout=Layout(2, 2))
    reshard(root / "ranks", root / "whole")
    write_neox(root / "neox", CASE, Form(layers=True, old=True))
    return root


def changed(forms: Path, target: Path, name: str, change: Tensor | None) -> Path:
    """A copy of the folder of Hugging Face's, with one tensor in place of another or left out."""
    target.mkdir()
    (target / "config.json").write_bytes((forms / "hf" / "config.json").read_bytes())
    tensors = load_file(forms / "hf" / "model.safetensors")
    assert name in tensors
    if change is None:
        del tensors[name]
    else:
        tensors[name] = change
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.parametrize("form", ["ranks", "whole", "neox", f"neox/global_step{STEP}"])
def test_all_forms_are_equal(forms: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main([str(forms / form), str(forms / "hf"), "--diff"])
    said = capsys.readouterr().out.splitlines()
    if form.startswith("neox"):  # which rows are padding, its folder does not say
        assert status == 1
        assert [line.split()[0] for line in said[2:-1]] == [
            "sequential.0.word_embeddings.weight",
            "sequential.6.final_linear.weight",
        ]
        assert "[112, 32] and [100, 32]" in said[2]
        options = ["--diff", "--vocab_size", str(VOCAB)]
        status = main([str(forms / form), str(forms / "hf"), *options])
        said = capsys.readouterr().out.splitlines()
    assert (status, len(said)) == (0, 3), said
    assert said[-1] == "15 tensors in both: 15 equal, 0 differ; 0 in one alone"


@pytest.mark.parametrize("case", ["grouped", "scaled, tied"])
def test_raw_files_are_a_form_too(tmp_path: Path, case: str) -> None:
    write_raw(tmp_path / "raw", case, 2)
    import_model(raw_source(tmp_path / "raw", None), tmp_path / "ours", layout=Layout(2, 0))
    assert main([str(tmp_path / "raw"), str(tmp_path / "ours")]) == 0


def test_what_differs_is_named(
    forms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "model.layers.1.self_attn.o_proj.weight"
    other = make_model(CASE).state_dict()[name].clone()
    other[3, 5] += 0.25
    other[4, 5] -= 0.5
    folder = changed(forms, tmp_path / "changed", name, other)
    assert main([f"{forms / 'ranks'},{folder}", "-d"]) == 1
    _, _, line, last = capsys.readouterr().out.splitlines()
    assert line == (
        "  sequential.3.attention.dense.weight  [32, 32]  2 of 1,024 numbers differ, by 5.000e-01 at most"
    )
    assert last.startswith("15 tensors in both: 14 equal, 1 differ, the furthest by 5.000e-01 in")
    assert main([str(forms / "ranks"), str(folder), "--tolerance", "0.6"]) == 0
    assert "15 equal within 0.6" in capsys.readouterr().out


def test_names_of_one_alone(
    forms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model("llama 4/1", tmp_path / "tied")
    assert main([str(forms / "hf"), str(tmp_path / "tied"), "--diff"]) == 1
    said = capsys.readouterr().out
    assert "  sequential.6.final_linear.weight  only in one\n" in said
    assert said.endswith("; 1 in one alone\n")


def test_tensors_beside_the_model_are_shown(
    forms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as the vectors of a soft prompt, which no family of Hugging Face has."""
    write_neox(tmp_path / "tuned", CASE, Form(size=1))
    path = tmp_path / "tuned" / f"global_step{STEP}" / "mp_rank_00_model_states.pt"
    content = torch.load(path, weights_only=True)
    content["module"]["sequential.0.soft_embedding_weight"] = torch.ones(3, 32)
    torch.save(content, path)
    folders = [str(tmp_path / "tuned"), str(forms / "hf")]
    assert main([*folders, "--diff", "--vocab_size", str(VOCAB)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[2:] == [
        "  sequential.0.soft_embedding_weight  only in one",
        "15 tensors in both: 15 equal, 0 differ; 1 in one alone",
    ]


def test_numbers_of_a_model(forms: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(forms / "ranks"), "--stats"]) == 0
    said = capsys.readouterr().out
    table = make_model(CASE).state_dict()["model.embed_tokens.weight"]
    line = next(line for line in said.splitlines() if "word_embeddings" in line)
    assert f"[{VOCAB}, 32]  mean {table.mean().item():+.3e}" in line
    assert f"std {table.std(correction=0).item():.3e}" in line
    assert f"largest {table.abs().max().item():.3e}" in line
    assert "step 0, pipe 2 × data 1 × model 2, ZeRO 0, fp32, without the optimizer's state" in said
    numbers = sum(parameter.numel() for parameter in make_model(CASE).parameters())
    assert said.endswith(f"15 tensors, {numbers:,} numbers\n")


def model_of(*tensors: Tensor) -> Model:
    """Of literal tensors, named by their place."""
    named = {Parameter(0, str(n), tuple(t.shape)): t for n, t in enumerate(tensors)}
    return Model(Path("here"), "literal", tuple(named), named.__getitem__)


def test_numbers_that_are_none() -> None:
    nan, inf = math.nan, math.inf
    one = model_of(torch.tensor([nan, 1.0]), torch.tensor([nan, 1.0]), torch.tensor([inf, -inf]))
    other = model_of(torch.tensor([nan, 1.0]), torch.tensor([2.0, 1.0]), torch.tensor([inf, inf]))
    found = [(each.largest, each.different) for each in deviations(one, other)]
    assert found == [(0.0, 0), (inf, 1), (inf, 1)]
    lines = list(described(one, with_numbers=True))
    assert "mean +1.000e+00  std 0.000e+00  largest 1.000e+00  1 are no finite numbers" in lines[1]


def test_types_do_not_matter_and_pieces_add_up() -> None:
    """Numbers of three pieces, of which each has one that differs; the same in another type is equal."""
    one, other = torch.zeros(3, _CHUNK), torch.zeros(3, _CHUNK, dtype=torch.bfloat16)
    other[0, 0], other[1, 1], other[2, -1] = 0.5, -2.0, 1.0
    (found,) = deviations(model_of(one), model_of(other))
    assert (found.largest, found.different) == (2.0, 3)
    (found,) = deviations(model_of(other.float()), model_of(other))
    assert (found.largest, found.different) == (0.0, 0)


def test_one_tensor_of_each_is_in_memory() -> None:
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def read(parameter: Parameter) -> Tensor:
        nonlocal most
        made = torch.full(parameter.shape, float(parameter.layer))
        alive.append(weakref.ref(made))
        most = max(most, sum(each() is not None for each in alive))
        return made

    model = Model(Path("here"), "made", [Parameter(n, "weight", (4, 4)) for n in range(9)], read)
    assert all(not each.different for each in deviations(model, model))
    list(described(model, with_numbers=True))
    assert len(alive) == 27
    assert most == 2


def test_what_is_no_model(forms: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        open_model(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        open_model(tmp_path)
    name = "model.norm.weight"
    with pytest.raises(CheckpointError, match=f"{name} is not there"):
        open_model(changed(forms, tmp_path / "cut", name, None))


def test_three_folders_are_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["one", "other,third"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("error: one or two folders\n")


def test_the_status_of_the_command(forms: Path, tmp_path: Path) -> None:
    command = "tools/ckpts/inspect_checkpoints.py"
    same = door(command, "hf", "whole", folder=forms)
    assert (same.status, same.err) == (0, ""), same.all
    assert door(command, "hf", "neox", folder=forms).status == 1
    broken = door(command, "hf", "nowhere", folder=forms)
    assert broken.status == 2
    assert "nowhere: no such folder" in broken.err


def test_config_says_what_is_compared(forms: Path) -> None:
    """The names are those of this project, also of a folder of Hugging Face's."""
    config = json.loads((forms / "hf" / "config.json").read_bytes())
    model = open_model(forms / "hf")
    layers = {parameter.layer for parameter in model.parameters}
    assert layers == {0, *range(2, 2 + config["num_hidden_layers"]), 5, 6}
    assert model.form == "LlamaForCausalLM, fp32"
