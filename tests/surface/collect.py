"""What others rely on, as it is now: keys, options, metrics, formats and importable names.

``python -m tests.surface.collect --write`` makes it the surface of a release.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import pkgutil
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
FROZEN = Path(__file__).with_name("public_surface.json")
DOORS = ("deepy.py", "train.py", "generate.py", "eval.py")
# Where a user of GPT-NeoX looks for them.
EXPECTED_NAMES = (
    "megatron.neox_arguments.NeoXArgs.from_ymls",
    "megatron.neox_arguments.NeoXArgs.from_dict",
    "megatron.data.indexed_dataset.make_dataset",
    "megatron.data.indexed_dataset.MMapIndexedDataset",
    "megatron.tokenizer.build_tokenizer",
    "megatron.model.GPT2Model",
    "megatron.mpu.ColumnParallelLinear",
    "megatron.mpu.RowParallelLinear",
    "megatron.mpu.VocabParallelEmbedding",
    "megatron.mpu.vocab_parallel_cross_entropy",
)


def surface() -> dict[str, dict[str, Any]]:
    """Each part by its name: what it holds, by name, as JSON has it."""
    return {
        "config keys": keys(),
        "options": {name: options_of(name) for name in programs()},
        "metrics": dict.fromkeys(metrics()),
        "formats": formats(),
        "importable names": dict.fromkeys(names()),
    }


def keys() -> dict[str, str]:
    """Every key with what it accepts, its default, and whether it works."""
    from megatron.neox_arguments.registry import FIELDS

    def accepted(annotation: Any) -> str:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        return str(annotation).replace("typing.", "").replace("<class '", "").replace("'>", "")

    return {
        key: f"{accepted(field.annotation)} = {field.default!r} ({field.state})"
        for key, field in sorted(FIELDS.items())
    }


def programs() -> list[str]:
    """The commands that people type: all that are run as programs."""
    tools = (path.relative_to(ROOT).as_posix() for path in ROOT.glob("tools/*/*.py"))
    return [
        *DOORS,
        "deepy.py doctor",
        *sorted(
            name
            for name in tools
            # Benchmarks are for ourselves.
            if "__main__" in (ROOT / name).read_text() and "/benchmarks/" not in name
        ),
    ]


def options_of(name: str) -> list[str]:
    """The options of a program, without ``--help``, as argparse is told them."""
    found: set[str] = set()

    def look(parser: argparse.ArgumentParser, *_: Any) -> None:
        # Subcommands have options too.
        pending = [parser]
        while pending:
            for action in pending.pop()._actions:
                found.update(action.option_strings)
                if isinstance(action, argparse._SubParsersAction):
                    pending += action.choices.values()

    with (
        mock.patch.object(argparse.ArgumentParser, "print_help", look),
        mock.patch.object(sys, "argv", [*name.split(), "--help"]),
        # It would end this process.
        mock.patch("megatron.errors.run_door", lambda main: main()),
    ):
        try:
            runpy.run_path(str(ROOT / name.split()[0]), run_name="__main__")
        except SystemExit as error:
            if error.code:
                raise RuntimeError(f"{name} --help ends with {error.code}") from error
    return sorted(found - {"-h", "--help"})


def metrics() -> list[str]:
    """Names of rows: what is written in code between quotes and has the form of one."""
    found = {"iteration", "consumed_samples"}
    for path in (ROOT / "megatron" / "training").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                group, _, name = node.value.partition("/")
                if group in ("train", "runtime", "validation", "test") and name.isidentifier():
                    found.add(node.value)
    return sorted(found | {"validation/lm_loss", "test/lm_loss"})


def formats() -> dict[str, str | int]:
    """What a file says about its own form."""
    from megatron.checkpointing.manifest import FORMAT_VERSION as CHECKPOINT
    from megatron.data.index_file import CACHED_MAGIC, MMAP_MAGIC
    from megatron.data.local_copy import FORMAT_VERSION as COPY
    from megatron.data.recipes import FORMAT_VERSION as INDEX
    from megatron.doctor.page import FORMAT_VERSION as DOCTOR

    return {
        "mmap": MMAP_MAGIC.decode(),
        "cached": CACHED_MAGIC.decode(),
        "index store": INDEX,
        "copies on local disks": COPY,
        "checkpoint": CHECKPOINT,
        "doctor --json": DOCTOR,
    }


def names() -> list[str]:
    """What the rooms export, and what a user of GPT-NeoX looks for."""
    import megatron

    found = set(EXPECTED_NAMES)
    for module in pkgutil.iter_modules(megatron.__path__, "megatron."):
        if module.ispkg:
            room = importlib.import_module(module.name)
            found.update(f"{module.name}.{name}" for name in getattr(room, "__all__", ()))
    return sorted(found)


def in_a_process_of_its_own() -> dict[str, dict[str, Any]]:
    """:func:`surface`, far from what tests have loaded and patched."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.surface.collect"],
        cwd=ROOT,
        env=os.environ | {"DS_ACCELERATOR": "cpu", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    text = json.dumps(surface(), indent=1, ensure_ascii=False) + "\n"
    if "--write" in sys.argv:
        FROZEN.write_text(text, encoding="utf-8")
    else:
        print(text)
