#!/usr/bin/env python3
"""Push a Hugging Face folder to the Hub. See --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megatron.conversion.uploading import main
from megatron.errors import run_door

if __name__ == "__main__":
    run_door(main)
