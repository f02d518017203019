"""docs/cluster.md says what the launcher does."""

from __future__ import annotations

import re
from pathlib import Path

from megatron.launch.carried import CARRIED
from megatron.launch.command_line import LAUNCHER_OPTIONS, SWITCHES
from megatron.neox_arguments.registry import FIELDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")


def test_it_lists_the_variables_that_are_carried() -> None:
    text = PAGE.split("and no\nothers: ")[1].split(". More:")[0]
    assert re.findall(r"`([^`]+)`", text) == list(CARRIED)


def test_every_key_and_option_of_it_exists() -> None:
    table = re.findall(r"^\| (`.*?) \|", PAGE, flags=re.M)
    keys = [key for row in table for key in re.findall(r"`(\w+)`", row)]
    assert len(keys) >= 10
    assert not [key for key in keys if key not in FIELDS]
    for option in re.findall(r"deepy\.py (--\w+)", PAGE):
        assert option[2:] in {*LAUNCHER_OPTIONS, *SWITCHES}
