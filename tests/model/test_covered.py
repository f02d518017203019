"""Protects that every option of the model has a test that compares it with a reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model import covered
from tests.model.options import OPTIONS
from tests.support.doors import door
from tools.config import write_option_tests


def test_the_table_of_options_and_tests_is_up_to_date(tmp_path: Path) -> None:
    done = door("tools/config/write_option_tests.py", "--check", folder=tmp_path)
    assert done.status == 0, done.all


def names() -> list[str]:
    """As pytest collects them."""
    found = [f"{covered.OF_FORMULAS}[{option}]" for option in OPTIONS]
    return found + list(covered.ELSEWHERE.values())


def test_an_option_without_a_test_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "| `pos_emb` | `alibi` | works | `test_options.py[" in write_option_tests.table(names())
    left = [option for option in OPTIONS if option.changes.get("pos_emb") != "alibi"]
    monkeypatch.setattr(covered, "OPTIONS", left)
    with pytest.raises(SystemExit, match=r"^pos_emb: alibi has no test: add it"):
        write_option_tests.table(names())


def test_a_test_that_is_gone_is_named() -> None:
    left = [name for name in names() if "yarn" not in name]
    with pytest.raises(
        SystemExit, match="rotary_scaling: yarn: there is no test tests/model/test_hf"
    ):
        write_option_tests.table(left)
