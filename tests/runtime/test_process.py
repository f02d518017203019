"""All ranks have read the same configuration, or none starts."""

from __future__ import annotations

import pytest

from megatron.errors import LaunchError
from megatron.runtime.process import check_same_configuration
from megatron.runtime.world import World
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.ranks


def said(world: World, hashes: list[str]) -> str:
    try:
        check_same_configuration(world, hashes[world.rank])
    except LaunchError as error:
        return f"{error} {error.everywhere}"
    return "the same"


def test_ranks_that_have_read_different_files_stop_and_name_the_host() -> None:
    assert run_ranks(2, said, ["aaaa", "aaaa"]) == ["the same", "the same"]
    for text in run_ranks(2, said, ["aaaa", "bbbb"]):
        first, found, remedy = text.splitlines()
        assert remedy.endswith("True")
        assert first.startswith("host ")
        assert first.endswith(": rank 1 has read another configuration than rank 0")
        assert found.startswith("  found: hash bbbb there, aaaa on host ")
