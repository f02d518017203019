#!/usr/bin/env python3
"""Turn a checkpoint into a form that every layout of ranks loads. See --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.checkpointing.reshard import main
from megatron.errors import run_door

if __name__ == "__main__":
    run_door(main)
