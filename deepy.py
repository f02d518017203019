#!/usr/bin/env python
"""Start a script on every rank: ./deepy.py train.py -d configs 125M local_setup (see --help).

./deepy.py doctor config.yml looks at every host before.
"""

from __future__ import annotations

import sys

from megatron.errors import run_door
from megatron.launch.main import main


def _main() -> int:
    if sys.argv[1:2] == ["doctor"]:
        from megatron.doctor.main import main as doctor  # noqa: PLC0415 - a start has no use for it

        return doctor(sys.argv[2:])
    return main()


if __name__ == "__main__":
    run_door(_main)
