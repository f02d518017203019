#!/usr/bin/env python
"""Start a script on every rank: ./deepy.py train.py -d configs 125M local_setup (see --help).

./deepy.py doctor config.yml looks at every host before.
"""

from __future__ import annotations

import sys

from megatron.errors import run_door
from megatron.runtime.signals import loading


def main() -> int:
    with loading():
        from megatron.doctor.main import main as doctor
        from megatron.launch.main import main as launch

    return doctor(sys.argv[2:]) if sys.argv[1:2] == ["doctor"] else launch()


if __name__ == "__main__":
    run_door(main)
