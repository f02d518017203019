#!/usr/bin/env python3
"""Say how many documents and tokens token files hold. See --help, and megatron/preprocessing/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.errors import run_door
from megatron.preprocessing.dataset_tools import count_main

if __name__ == "__main__":
    run_door(count_main)
