"""Protects the plan of the house: who may import whom.

A file imports from floors below its own; rooms on one floor do not know each other. The configuration
imports neither torch nor DeepSpeed, DeepSpeed is imported by one file, and one file names cuda.
"""

from __future__ import annotations

import ast
import graphlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

FLOORS = [
    ["errors", "logging"],
    ["neox_arguments", "ranks"],
    ["runtime"],
    ["mpu"],
    ["tokenizer", "data", "model"],
    ["preprocessing", "losses", "optimizers", "checkpointing", "monitor"],
    ["training", "generation", "launch", "conversion"],
    ["evaluation", "doctor"],
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted((ROOT / "megatron").rglob("*.py"))


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "megatron" and len(parts) > 1 else None


def imports(path: Path) -> list[str]:
    """Every module that a file imports anywhere in it, in full."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found += [f"{node.module}.{name.name}" for name in node.names]
    return found


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in FILES}
    assert rooms - {"__init__"} == set(FLOOR_OF)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    own = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for module in imports(path):
        room = room_of(module)
        if room in FLOOR_OF and own in FLOOR_OF and room != own:
            assert FLOOR_OF[room] < FLOOR_OF[own], f"{own} (floor {FLOOR_OF[own]}) imports {module}"


def test_deepspeed_is_imported_by_one_file() -> None:
    users = [p for p in FILES if any(m.split(".")[0] == "deepspeed" for m in imports(p))]
    assert [p.name for p in users] == ["stock_deepspeed.py"]


def test_cuda_is_named_in_one_file() -> None:
    def names_cuda(path: Path) -> bool:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        return any(
            (isinstance(node, ast.Attribute) and node.attr == "cuda")
            or (isinstance(node, ast.Constant) and node.value == "cuda")
            for node in ast.walk(tree)
        )

    assert [p.name for p in FILES if names_cuda(p)] == ["device.py"]


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in FILES
}
# The extras of setup.py, and what only tests need.
OPTIONAL = ("sentencepiece", "pyarrow", "ftfy", "huggingface_hub", "transformers", "pytest", "gguf")
_WITHOUT_OPTIONAL = """
import importlib, importlib.abc, sys

class Minimal(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OPTIONAL:
            raise ModuleNotFoundError(f"{name} is not in requirements.txt", name=name)

sys.meta_path.insert(0, Minimal())
for name in MODULES:
    importlib.import_module(name)
"""


def needs(module: str) -> set[str]:
    """The modules of ours that have to be loaded before ``module`` is."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in tree.body:
        # What stands under `if TYPE_CHECKING` or in a function is not imported with the module.
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            names = [f"{node.module}.{name.name}" for name in node.names]
            found.update(name if name in MODULES else node.module for name in names)
    # Packages on the way are loaded first, but those that hold this very module have begun already.
    for name in tuple(found):
        parts = name.split(".")
        found.update(".".join(parts[:end]) for end in range(1, len(parts)))
    return {name for name in found & set(MODULES) if not f"{module}.".startswith(f"{name}.")}


def test_imports_run_in_no_circle() -> None:
    """So that each module can be imported first."""
    list(graphlib.TopologicalSorter({name: needs(name) for name in MODULES}).static_order())


def test_everything_imports_with_the_minimal_requirements() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"MODULES, OPTIONAL = {list(MODULES)!r}, {OPTIONAL!r}\n{_WITHOUT_OPTIONAL}",
        ],
        cwd=ROOT,
        env=os.environ | {"DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_configuration_needs_no_torch() -> None:
    code = (
        "import sys, megatron.neox_arguments.arguments_cli, megatron.launch.main; "
        "print(sorted({'torch', 'deepspeed', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
