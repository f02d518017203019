#!/usr/bin/env python3
"""Tokenize .jsonl and .jsonl.zst into token files. See --help, and megatron/preprocessing/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.errors import run_door
from megatron.preprocessing.cli import main

if __name__ == "__main__":
    run_door(main)
