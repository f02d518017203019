"""The files under configs/: each loads, alone or beside what it is made for, and is what it says it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from megatron.neox_arguments import NeoXArgs

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"

# Files without a model, and what to put beside them.
PARTS: dict[str, tuple[str, ...]] = {
    "local_setup": ("125M",),
    "text_generation": ("125M",),
    "slurm": ("125M", "local_setup"),
    "wandb": ("125M", "local_setup"),
    "comet": ("125M", "local_setup"),
    "tensorboard": ("125M",),
    "llama/train_config": ("llama/7B",),
    "cpu_smoke/setup": ("cpu_smoke/model",),
}
# Keys that a shipped file writes although they are ignored for now: the file says so.
SAID_TO_BE_IGNORED = {"wandb", "comet"}

NAMES = sorted(str(path.relative_to(CONFIGS).with_suffix("")) for path in CONFIGS.rglob("*.yml"))
MODELS = [name for name in NAMES if name not in PARTS]


def load(*names: str, **options: object) -> NeoXArgs:
    """Shipped files by name."""
    return NeoXArgs.from_ymls(names, conf_dir=CONFIGS, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_it_loads(name: str) -> None:
    args = load(*PARTS.get(name, ()), name)
    if name not in SAID_TO_BE_IGNORED:
        assert args.notes == ()
    elif name in SAID_TO_BE_IGNORED:
        keys = yaml.safe_load((CONFIGS / f"{name}.yml").read_text())
        assert all(key in args.notes[0] for key in keys)
        assert "ignored" in (CONFIGS / f"{name}.yml").read_text()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_a_batch_fits_the_world_of_its_layout(name: str) -> None:
    args = load(name)
    world_size = 2 * args.parallelism.ranks_per_replica
    if args.batch.train_batch_size or args.batch.train_micro_batch_size_per_gpu:
        assert args.batch_sizes(world_size).global_batch_size > 0
        assert args.training.train_iters is not None
    else:
        shapes = name.split("/")[0].startswith(("llama", "mistral"))
        assert shapes
        load(name, "llama/train_config", world_size=world_size)


def test_it_loads_with_its_companions() -> None:
    args = load(
        "125M",
        "local_setup",
        "text_generation",
        deepspeed_config=CONFIGS / "deepspeed_config.json",
        world_size=2,
    )
    assert args.notes == ()
    assert args.data.use_shared_fs
    assert args.data.mmap_warmup
    assert args.optim.lr == 6e-4
    assert args.model.precision == "bfloat16"


def test_every_file_is_in_the_folders_own_page() -> None:
    page = (CONFIGS / "README.md").read_text()
    for name in NAMES:
        folder = name.split("/")[0]
        assert f"`{name}.yml`" in page or f"`{folder}/" in page, name


# Parameters as published: of the Pythia suite (arXiv:2304.01373 and the models' files), GPT-NeoX-20B, and the
# checkpoints of Llama, Code Llama and Mistral. The second number is the padded vocabulary.
PUBLISHED = {
    "pythia/14M": (14_067_712, 50304),
    "pythia/31M": (30_494_720, 50304),
    "pythia/70M": (70_426_624, 50304),
    "pythia/160M": (162_322_944, 50304),
    "pythia/410M": (405_334_016, 50304),
    "pythia/1B": (1_011_781_632, 50304),
    "pythia/1-4B": (1_414_647_808, 50304),
    "pythia/2-8B": (2_775_208_960, 50304),
    "pythia/6-9B": (6_857_302_016, 50432),
    "pythia/12B": (11_846_072_320, 50688),
    "20B": (20_554_567_680, 50432),
    "llama/7B": (6_738_415_616, 32000),
    "llama/13B": (13_015_864_320, 32000),
    "llama/30B": (32_528_943_616, 32000),
    "llama/65B": (65_285_660_672, 32000),
    "llama2/7B": (6_738_415_616, 32000),
    "llama2/13B": (13_015_864_320, 32000),
    "llama2/70B": (68_976_648_192, 32000),
    "llama2/codellama_7B": (6_738_546_688, 32016),
    "llama2/codellama_34B": (33_743_970_304, 32000),
    "llama3/8B": (8_030_261_248, 128256),
    "llama3/70B": (70_553_706_496, 128256),
    "mistral/7B": (7_241_732_096, 32000),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_as_published(name: str) -> None:
    count, vocabulary = PUBLISHED[name]
    assert load(name).model.parameter_count(vocabulary) == count


# The shapes of the GPT-3 paper (arXiv:2005.14165, table 2.1) are named by what they have when the output
# layer shares the embedding; 19M and 49M by what they have outside the embeddings. Names round.
NAMED = {
    "125M": 125e6,
    "350M": 350e6,
    "760M": 760e6,
    "1-3B": 1.3e9,
    "2-7B": 2.7e9,
    "6-7B": 6.7e9,
    "13B": 13e9,
    "175B": 175e9,
}


@pytest.mark.parametrize("name", NAMED)
def test_a_name_is_the_rounded_number_of_parameters(name: str) -> None:
    args = load(name)
    tied = args.model.parameter_count(50257) - 50257 * args.model.hidden_size
    assert tied == pytest.approx(NAMED[name], rel=0.025)


@pytest.mark.parametrize(("name", "count"), [("19M", 18.9e6), ("49M", 49.2e6)])
def test_the_small_ones_are_named_without_their_embeddings(name: str, count: float) -> None:
    args = load(name)
    inner = args.model.parameter_count(50304) - 2 * 50304 * args.model.hidden_size
    assert inner == pytest.approx(count, rel=0.01)
