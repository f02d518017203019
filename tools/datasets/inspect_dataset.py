#!/usr/bin/env python3
"""Show documents or samples of a token file as text. See --help, and megatron/preprocessing/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.errors import run_door
from megatron.preprocessing.inspection import inspect_main

if __name__ == "__main__":
    run_door(inspect_main)
