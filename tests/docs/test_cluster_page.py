"""docs/cluster.md says what the launcher does."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from megatron.launch.carried import CARRIED
from megatron.launch.command_line import LAUNCHER_OPTIONS, SWITCHES
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.registry import FIELDS
from tests.docs.shell_blocks import commands_of
from tests.support.small_config import small

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


def test_it_lists_the_variables_that_are_carried() -> None:
    text = PAGE.split("and no\nothers: ")[1].split(". More:")[0]
    assert re.findall(r"`([^`]+)`", text) == list(CARRIED)


def test_a_newcomer_finds_the_data_and_a_start_first() -> None:
    """The example, whose commands tests/cluster runs on two hosts, stands before what goes into detail."""
    heads = re.findall(r"^## (.*)", PAGE, flags=re.M)
    assert heads[0] == "Two hosts, from nothing"
    example = PAGE.split(f"## {heads[0]}")[1].split("\n## ")[0]
    commands = [command.words for command in commands_of("docs/cluster.md", ROOT)]
    assert commands[1:] == re.findall(r"^\./deepy\.py .*", example, flags=re.M)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "../README.md#your-own-text-in-ten-minutes" in example
    assert "\n## Your own text, in ten minutes\n" in readme
    data = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    assert "data.md#data-on-several-nodes" in example
    assert "\n## Data on several nodes\n" in data
    settings = re.findall(r"```yaml\n(.*?)```", example, flags=re.S)
    args = NeoXArgs.from_dict(small(**yaml.safe_load(settings[0])))
    assert not args.data.use_shared_fs
    assert args.checkpointing.use_node_local_storage


def test_every_key_and_option_of_it_exists() -> None:
    table = re.findall(r"^\| (`.*?) \|", PAGE, flags=re.M)
    keys = [key for row in table for key in re.findall(r"`(\w+)`", row)]
    assert len(keys) >= 10
    assert not [key for key in keys if key not in FIELDS]
    for option in re.findall(r"deepy\.py (--\w+)", PAGE):
        assert option[2:] in {*LAUNCHER_OPTIONS, *SWITCHES}


def test_what_it_says_of_containers_is_in_the_dockerfile() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for name in re.findall(r"--build-arg (\w+)=", PAGE):
        assert f"ARG {name}=" in dockerfile
    for script in re.findall(r"(?:/neox/|\s)((?:tools/cluster/)?\w+\.(?:py|sh))", PAGE):
        assert (ROOT / script).exists() or script == "script.py", script


def test_a_gathered_checkpoint_is_configured_as_it_says() -> None:
    settings = dict(re.findall(r"--set ([\w.]+)=(\S+)", PAGE.split("on each host\n")[1]))
    changes = {
        key: value == "true" if value in ("true", "false") else value
        for key, value in settings.items()
    }
    nested = {"use_node_local_storage": changes.pop("checkpoint.use_node_local_storage")}
    args = NeoXArgs.from_dict(small(**changes, checkpoint=nested))
    assert args.checkpointing.reshape_on_load
    assert not args.checkpointing.use_node_local_storage
