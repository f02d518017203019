"""The room as a whole: what an import of it costs, and that its list of keys is up to date."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_documentation_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools/config/write_docs.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


# What makes a start slow: everything that has to be installed, but for the reader of YAML and what that is
# built with, and these parts of Python.
CHEAP = {"megatron", "yaml", "_yaml", "cython_runtime"}
DEAR = {
    "asyncio",
    "concurrent",
    "email",
    "http",
    "multiprocessing",
    "ssl",
    "subprocess",
    "unittest",
}


def test_import_is_cheap() -> None:
    code = (
        "import sys; before = set(sys.modules); import json, megatron.neox_arguments;"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules.keys() - before})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60, capture_output=True
    )
    loaded = {name for name in json.loads(done.stdout) if not name.startswith("_cython_")}
    assert loaded - sys.stdlib_module_names <= CHEAP
    assert not loaded & DEAR
    assert "megatron" in loaded
