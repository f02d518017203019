"""The files under configs/, the generated documentation, and the cost of an import."""

from __future__ import annotations

import csv
import resource
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.known_keys import ALIASES, IGNORED, REFUSED, RUNTIME, SHORTHANDS
from megatron.neox_arguments.registry import FIELDS, KNOWN_KEYS

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
# Companions of a model's file: they hold no shape of their own.
PARTS = {"local_setup.yml", "text_generation.yml"}
SHAPES = sorted(path for path in CONFIGS.rglob("*.yml") if path.name not in PARTS)
NEOX_FIELDS = ROOT.parent / "shared" / "NEOX_FIELDS.tsv"


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_it_loads(path: Path) -> None:
    args = NeoXArgs.from_ymls([path], world_size=2)
    assert not [note for note in args.notes if note.startswith("ignored")]


def test_it_loads_with_its_companions() -> None:
    args = NeoXArgs.from_ymls(
        ["125M", "local_setup", "text_generation"],
        conf_dir=CONFIGS,
        deepspeed_config=CONFIGS / "deepspeed_config.json",
        world_size=2,
    )
    assert args.notes == ()
    assert args.data.use_shared_fs
    assert args.data.mmap_warmup
    assert args.optim.lr == 6e-4
    assert args.model.precision == "bfloat16"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("125M", 162_322_944),
        ("pythia/14M", 14_067_712),
        ("pythia/31M", 30_494_720),
        ("pythia/70M", 70_426_624),
        ("pythia/160M", 162_322_944),
    ],
)
def test_parameters_as_published(name: str, count: int) -> None:
    args = NeoXArgs.from_ymls([name], conf_dir=CONFIGS)
    assert args.model.parameter_count(50304) == count


def test_the_documentation_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools/config/write_docs.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_import_is_cheap() -> None:
    code = (
        "import sys, megatron.neox_arguments;"
        "sys.exit('torch' in sys.modules or 'deepspeed' in sys.modules)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert (
        seconds / 3 < 0.3
    )  # processor time, interpreter included: 0.15 s on the machine of the first run


@pytest.mark.skipif(not NEOX_FIELDS.exists(), reason="the table of GPT-NeoX's fields is not here")
class TestFieldsOfGptNeox:
    def rows(self) -> list[dict[str, str]]:
        with NEOX_FIELDS.open() as file:
            return list(csv.DictReader(file, delimiter="\t"))

    def test_every_field_is_known_in_one_state(self) -> None:
        for key in {row["field"] for row in self.rows()}:
            states = [key in FIELDS or key in SHORTHANDS, key in IGNORED, key in REFUSED]
            states += [key in RUNTIME, key in ALIASES]
            assert sum(states) == 1, key

    def test_defaults_are_the_same(self) -> None:
        # Where a default differs, the field's text says so.
        ours_by_choice = {
            "gradient_accumulation_steps": None,  # derived
            "optimizer_type": "adam",
            "zero_stage": 0,
            "lr": 0.001,
            "precision": "fp32",
            "distributed_backend": None,  # by device
            "master_port": None,  # a free one
            "git_hash": None,
        }
        for row in self.rows():
            key = row["field"]
            if key not in FIELDS:
                continue
            theirs = ours_by_choice[key] if key in ours_by_choice else eval(row["default"])  # noqa: S307
            assert FIELDS[key].default == theirs, key

    def test_every_choice_is_known(self) -> None:
        for row in self.rows():
            if row["type"].startswith("Literal[") and row["field"] in FIELDS:
                choices = typing.get_args(eval(row["type"], vars(typing)))  # noqa: S307
                annotation = repr(FIELDS[row["field"]].annotation)
                assert not [c for c in choices if repr(c) not in annotation], row["field"]

    def test_keys_that_are_not_gpt_neoxs_are_few_and_ours(self) -> None:
        theirs = {row["field"] for row in self.rows()}
        ours = {key for key in FIELDS if key not in theirs and FIELDS[key].section != "ds"}
        assert ours == {
            "data_order",
            "index_cache_dir",
            "index_build_timeout_s",
            "allow_data_change",
            "eval_same_samples",
            "use_node_local_storage",
        }
        assert theirs <= KNOWN_KEYS
