#!/usr/bin/env python3
"""Learn a byte-level BPE tokenizer.json from text. See --help, and megatron/preprocessing/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.errors import run_door
from megatron.preprocessing.tokenizer_training import main

if __name__ == "__main__":
    run_door(main)
