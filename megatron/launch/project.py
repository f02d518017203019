"""Which version of this project lies in a folder.

Another host's version need not have this file as it is here: its text goes there, with the question
(:mod:`megatron.launch.pdsh`). So it needs the standard library alone.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

DOORS = ("deepy.py", "train.py", "generate.py", "eval.py")


def project_hash(root: Path) -> str:
    """A hash of what ranks run, the same wherever the same version lies, whatever lies beside it."""
    whole = hashlib.sha256()
    doors = (root / name for name in DOORS)
    for path in sorted([*filter(Path.exists, doors), *(root / "megatron").rglob("*.py")]):
        whole.update(f"{path.relative_to(root)}\0".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:12]


def project_version(root: Path) -> str:
    """The project's number and hash, for people: ``0.1.0 (hash 5feceb66ffc8)``."""
    found = re.search(r'^__version__ = "(.*)"$', (root / "megatron/__init__.py").read_text(), re.M)
    return f"{found[1] if found else 'no number'} (hash {project_hash(root)})"
