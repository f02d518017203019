#!/usr/bin/env python3
"""Join token files into one. See --help, and megatron/preprocessing/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.errors import run_door
from megatron.preprocessing.dataset_tools import merge_main

if __name__ == "__main__":
    run_door(merge_main)
