#!/usr/bin/env python3
"""Turn Llama's own files into a checkpoint. See --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.conversion.command_lines import raw_llama_to_neox
from megatron.errors import run_door

if __name__ == "__main__":
    run_door(raw_llama_to_neox)
