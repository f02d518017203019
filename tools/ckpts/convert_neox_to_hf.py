#!/usr/bin/env python3
"""Turn a checkpoint into a folder that transformers loads. See --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.conversion.command_lines import neox_to_hf
from megatron.errors import run_door

if __name__ == "__main__":
    run_door(neox_to_hf)
