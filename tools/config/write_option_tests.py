#!/usr/bin/env python
"""Write megatron/model/README.md: every option of the model, and the test that compares it with a reference.

python tools/config/write_option_tests.py            # write it
python tools/config/write_option_tests.py --check    # only say whether it is up to date

Options are found in the configuration's own fields, tests in what pytest collects: an option without a
test, or with one that is not there, is an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from megatron.neox_arguments.registry import FIELDS, FieldSpec  # noqa: E402 - needs ROOT
from megatron.neox_arguments.sections import ModelArgs  # noqa: E402
from megatron.neox_arguments.sections.attention import ATTENTION_KINDS  # noqa: E402
from megatron.neox_arguments.typed import NotYet, choices_of  # noqa: E402
from tests.model.covered import ANY, ELSEWHERE, OF_FORMULAS, tests_of  # noqa: E402
from tools.config.generated_page import write_or_check  # noqa: E402

TARGET = ROOT / "megatron" / "model" / "README.md"

# Sizes that every test has, and the type of numbers, which tests/training compares.
_SIZES = frozenset(
    {
        "precision",
        "num_layers",
        "hidden_size",
        "num_attention_heads",
        "seq_length",
        "max_position_embeddings",
        "make_vocab_size_divisible_by",
    }
)
# Options outside the model's section.
_MORE = (
    "z_loss",
    "use_mup",
    "soft_prompt_tuning",
    "attention_softmax_in_fp32",
    "apply_query_key_layer_scaling",
    "scaled_upper_triang_masked_softmax_fusion",
    "scaled_masked_softmax_fusion",
    "rope_fusion",
    "bias_dropout_fusion",
)

HEAD = """\
# The model

Start reading at `gpt2_model.py`; `layout.py` has the list of layers and the names of their tensors.

Every option below is compared in fp32 on the CPU with a plain reference: `transformers`, or the formula
written out in `tests/model/plain_decoder.py`; logits and gradients, or for initial weights their statistics.
Combinations that cannot be are refused at the start, each with its reason (`megatron/neox_arguments/rules/`).
This table is made by `python tools/config/write_option_tests.py`, which fails where an option has no test.

| key | value | state | tests |
|---|---|---|---|
"""


def options() -> Iterator[tuple[FieldSpec, Any]]:
    """Every key and the values of it that are told apart."""
    keys = [item.name for item in dataclasses.fields(ModelArgs) if item.name not in _SIZES]
    for key in (*keys, *_MORE):
        spec = FIELDS[key]
        for value in _values(spec):
            yield spec, value


def _values(spec: FieldSpec) -> list[Any]:
    if spec.key == "attention_config":
        return sorted(ATTENTION_KINDS)
    marks = getattr(spec.annotation, "__metadata__", ())
    later = {choice for mark in marks if isinstance(mark, NotYet) for choice in mark.choices}
    choices = [choice for choice in choices_of(spec.annotation) if choice not in later]
    if choices:
        return choices
    if spec.annotation is bool or spec.annotation == bool | None or bool in _arguments(spec):
        return [not spec.default]
    return [ANY]


def _arguments(spec: FieldSpec) -> tuple[Any, ...]:
    return tuple(getattr(spec.annotation, "__args__", ()))


class _Collected:
    """Keeps the names of what pytest collects."""

    names: tuple[str, ...] = ()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names = tuple(item.nodeid for item in session.items)


def collected() -> list[str]:
    """The names of all tests in the files that the table speaks of."""
    files = {OF_FORMULAS.split("::")[0], *(test.split("::")[0] for test in ELSEWHERE.values())}
    found, said = _Collected(), io.StringIO()
    options = ["--collect-only", f"--rootdir={ROOT}", *(str(ROOT / name) for name in sorted(files))]
    with contextlib.redirect_stdout(said):
        status = pytest.main(options, plugins=[found])
    if status != pytest.ExitCode.OK:
        raise SystemExit(f"the tests cannot be collected\n{said.getvalue()[-4000:]}")
    return list(found.names)


def table(names: list[str]) -> str:
    """A row for each option.

    Raises:
        SystemExit: some have no test.
    """
    rows, wrong = [], []
    for spec, value in options():
        tests = tests_of(spec.key, value)
        if not tests:
            wrong.append(f"{spec.key}: {value} has no test: add it to tests/model/options.py")
        wrong += [
            f"{spec.key}: {value}: there is no test {test}"
            for test in tests
            if not any(name.startswith(test) for name in names)
        ]
        shown = ", ".join(f"`{_short(test)}`" for test in tests)
        rows.append(f"| `{spec.key}` | {_said(value)} | {spec.state} | {shown} |\n")
    if wrong:
        raise SystemExit("\n".join(wrong))
    return HEAD + "".join(rows)


def _short(test: str) -> str:
    """A test without what all have in common."""
    long = OF_FORMULAS.removeprefix("tests/model/")
    name = test.removeprefix("tests/model/").removeprefix("tests/").rstrip("-")
    name = name + "]" * (name.count("[") - name.count("]"))
    return name.replace(long, "test_options.py").replace("|", "\\|")


def _said(value: Any) -> str:
    return (
        value if value is ANY else f"`{str(value).lower() if isinstance(value, bool) else value}`"
    )


def main() -> int:
    return write_or_check(
        TARGET,
        lambda: table(collected()),
        script="tools/config/write_option_tests.py",
        about=__doc__,
    )


if __name__ == "__main__":
    sys.exit(main())
