"""The files under configs/, the generated documentation, and the cost of an import."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from megatron.neox_arguments import NeoXArgs

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
# Companions of a model's file: they hold no shape of their own.
PARTS = {"local_setup.yml", "text_generation.yml"}
SHAPES = sorted(path for path in CONFIGS.rglob("*.yml") if path.name not in PARTS)


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
