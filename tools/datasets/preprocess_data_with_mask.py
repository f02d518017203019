#!/usr/bin/env python3
"""Tokenize text into token files, and labels that leave out what stands before a delimiter. See --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.errors import run_door
from megatron.preprocessing.cli import mask_main

if __name__ == "__main__":
    run_door(mask_main)
