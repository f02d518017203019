#!/usr/bin/env python
"""Start a script on every rank: ./deepy.py train.py -d configs 125M local_setup (see --help)."""

from __future__ import annotations

from megatron.errors import run_door
from megatron.launch.main import main

if __name__ == "__main__":
    run_door(main)
