#!/usr/bin/env python3
"""Build the index maps of a configuration ahead of the job. See --help, and megatron/data/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.data.build_index import main
from megatron.errors import run_door

if __name__ == "__main__":
    run_door(main)
