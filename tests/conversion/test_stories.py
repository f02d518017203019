"""Protects that a real trained model tells its story: imported, exported, and after fine-tuning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
import yaml

from megatron.conversion import export_checkpoint, import_folder
from megatron.data.indexed_dataset import MMapIndexedDatasetBuilder
from megatron.generation.engine import generate
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from megatron.tokenizer import build_tokenizer
from megatron.training.loading import load_trained_model
from megatron.training.setup import build_parts
from tests.conversion.hf_models import assert_same_tensors
from tests.conversion.stories import BEGINNING, why_not, write_hf_folder
from tests.support.doors import door
from tests.support.tiny import series

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

STORY = """Tom had a small green boat. Every morning he took it to the pond behind the house. One windy
day the boat sailed too far. Tom could not reach it. He was sad and sat down on a stone. Then a big white
duck came. The duck pushed the boat with its beak, and soon it was back. Tom laughed and gave the duck some
bread. From that day on, the duck and the boat were always together on the pond."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as transformers saves it in ``theirs``, and imported in ``ours``."""
    root = tmp_path_factory.mktemp("stories")
    write_hf_folder(root / "theirs")
    done = import_folder(root / "theirs", root / "ours")
    assert done.comparison.difference is not None
    return root


def test_our_engine_tells_the_story(folder: Path) -> None:
    args = NeoXArgs.from_ymls(
        [folder / "ours" / "model.yml"], ["temperature=0", "maximum_tokens=64"]
    )
    parts = build_parts(args, World())
    model, _ = load_trained_model(args, parts)
    (sample,) = generate(
        model, parts.tokenizer, [""], args.textgen, seed=1, device=torch.device("cpu")
    )
    assert sample.text.startswith(BEGINNING)


def test_transformers_tells_it_from_what_we_export(folder: Path, tmp_path: Path) -> None:
    export_checkpoint(folder / "ours", tmp_path / "back")
    assert_same_tensors(folder / "theirs", tmp_path / "back")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    begin = torch.tensor([[tokenizer.bos_token_id]])
    ids = model.generate(begin, max_new_tokens=64, do_sample=False)[0]
    assert tokenizer.decode(ids, skip_special_tokens=True).startswith(BEGINNING)


@pytest.mark.ranks
def test_fine_tuning_on_a_story(folder: Path, tmp_path: Path) -> None:
    written = yaml.safe_load((folder / "ours" / "model.yml").read_text())
    tokenizer = build_tokenizer(written["tokenizer_type"], written["vocab_file"])
    builder = MMapIndexedDatasetBuilder(str(tmp_path / "story.bin"), "uint16")
    builder.add_item([*tokenizer.tokenize(STORY.replace("\n", " ")), tokenizer.eod])
    builder.end_document()
    builder.finalize(str(tmp_path / "story.idx"))
    run = {
        "data_path": "story",
        "split": "1,0,0",
        "seq_length": 64,
        "num_workers": 0,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "train_iters": 20,
        "eval_iters": 0,
        "log_interval": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.9, 0.95]}},
        "save": "tuned",
        "distributed_backend": "gloo",
    }
    (tmp_path / "run.yml").write_text(yaml.safe_dump({**written, **run}))
    done = door("train.py", "--config-file", "run.yml", folder=tmp_path)
    assert done.status == 0, done.all
    losses = series(tmp_path / "tuned", "train/lm_loss")
    assert len(losses) == 20
    # It knows such stories: it begins far below a model that guesses, and learns this one.
    assert losses[0] < 3.5
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5
