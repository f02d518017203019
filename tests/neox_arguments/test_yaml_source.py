"""Strict YAML: values, places, and every way in which a file can be wrong."""

from __future__ import annotations

import math

import pytest

from megatron.neox_arguments.problems import Place, Problems
from megatron.neox_arguments.yaml_source import Document, plain_scalar, read_document


def read(text: str, source: str = "f.yml") -> tuple[Document, str]:
    problems = Problems()
    document = read_document(source, text, problems)
    return document, problems.message() if problems else ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("-2.5e+3", -2500.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("1.0e-8", 1e-8),
        ("12", 12),
        ("-7", -7),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0o17", 15),
        ("0", 0),
        (".inf", math.inf),
        ("true", True),
        ("True", True),
        ("off", False),
        ("null", None),
        ("None", None),
        ("~", None),
        ("1.0e_8", "1.0e_8"),
        ("12:30", "12:30"),
        ("2026-01-31", "2026-01-31"),
        ("969, 30, 1", "969, 30, 1"),
        ("tRue", "tRue"),
        ("e5", "e5"),
        (".", "."),
    ],
)
def test_plain_scalars(text: str, value: object) -> None:
    found = plain_scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_a_number_that_could_be_octal_is_refused() -> None:
    _, message = read("a: 010")
    assert message == (
        "f.yml:1: a: 010 is ambiguous (eight-based in YAML 1.1): write it without the 0 in front"
    )


def test_flow_style_as_gpt_neox_writes_it() -> None:
    text = (
        "# a comment\n"
        "{\n"
        '  "train-iters": 10,   # dashes, quotes, a comment\n'
        '  "optimizer": {"type": "Adam", "params": {"lr":0.97e-4, "betas": [0.9, 0.95],}},\n'
        '  "no-weight-tying": True,\n'
        "}\n"
    )
    document, message = read(text)
    assert message == ""
    assert document.values == {
        "train_iters": 10,
        "optimizer": {"type": "Adam", "params": {"lr": 0.97e-4, "betas": [0.9, 0.95]}},
        "no_weight_tying": True,
    }
    assert document.place(("train_iters",)) == Place("f.yml", 3)
    assert document.place(("optimizer", "params", "betas", 1)) == Place("f.yml", 4)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "{}", "null"])
def test_empty_files_say_nothing(text: str) -> None:
    assert read(text) == (Document("f.yml"), "")


def test_json_with_tabs_and_a_byte_order_mark() -> None:
    document, message = read('\ufeff{\n\t"a": [1,\t2]\n}', "f.json")
    assert (document.values, message) == ({"a": [1, 2]}, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yml:3: a: given twice, first on line 1: keep one"),
        ("a-b: 1\na_b: 2\n", "f.yml:2: a_b: given twice, first on line 1 as a-b: keep one"),
        (
            "o: {p: {lr: 1,\n lr: 2}}",
            "f.yml:2: o.p.lr: given twice, first on line 1: keep one",
        ),
        ("l:\n- {x: 1, x: 2}", "f.yml:2: l.0.x: given twice, first on line 2: keep one"),
        (
            "[1, 2]",
            "f.yml:1: a configuration file holds keys with values, this one does not",
        ),
        ("a: !!python/object:os.system x", "f.yml:1: a: tags such as "),
        ("a: &x {b: *x}", "f.yml:1: a.b: an alias makes this value endless: write it out"),
        ("a: &x {b: 1}\nc: {<<: *x}", "f.yml:2: c: merge keys (<<) have no meaning here"),
        ("{[1, 2]: 3}", "f.yml:1: keys that are no words have no meaning here"),
        ("a: 1\n---\nb: 2\n", "f.yml:2: column 1: YAML cannot be read: expected a single document"),
        ("a: b: c", "f.yml:1: column 5: YAML cannot be read: mapping values are not allowed here"),
        ('a: "open', "f.yml:1: column 9: YAML cannot be read: while scanning a quoted scalar"),
        ("a:\n\t- b", "f.yml:2: column 1: YAML cannot be read: while scanning for the next token"),
        (f"a: {'9' * 1001}", "f.yml:1: a: a number of 1,001 digits means nothing here"),
        ("a: \x07", "f.yml:1: a character that YAML does not allow (code 7)"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, message: str) -> None:
    assert read(text)[1].startswith(message)


def test_a_missing_comma_is_found_on_the_line_before() -> None:
    text = '{\n  "num-samples": 10\n  "sample-input-file": "prompt.txt",\n}\n'
    _, message = read(text)
    assert message.startswith("f.yml:3: column 22: YAML cannot be read: ")
    assert message.endswith("; a comma is probably missing at the end of line 2")
    _, message = read(text.replace("10", "10  # ten,"))
    assert message.startswith("f.yml:3: column 3: YAML cannot be read: ")
    assert message.endswith("; a comma is probably missing at the end of line 2")


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("a: 1\nhidden_size 64\nb: 2\n", 2, "hidden_size 64"),
        ("a: 1\nhidden_size 64\n\n# then\n\nb: 2\n", 2, "hidden_size 64"),
        ("a: 1\nhidden_size 64", 2, "hidden_size 64"),
        ("a: 1\nsplit [1, 2]\nb: 2\n", 2, "split [1, 2]"),
        ("a: 1\nsave s3://a/b\nb: 2\n", 2, "save s3://a/b"),
        ("a: 1\nhidden_size 64  # as: in b\nb: 2\n", 2, "hidden_size 64  # as: in b"),
        ("hidden_size 64\nb: 2\n", 1, "hidden_size 64"),
        ("optimizer\n  type: Adam\n", 1, "optimizer"),
        ("# first\n\nhidden_size 64  # wide\n# then\nb: 2\n", 3, "hidden_size 64  # wide"),
        ("o:\n  type: Adam\n  params\n    lr: 1e-3\n", 3, "params"),
        ("o:\n  p:\n    lr 1e-3\n    eps: 1\n", 3, "lr 1e-3"),
        ("o:\n  p:\n    eps: 1\n    lr 1e-3\nb: 2\n", 4, "lr 1e-3"),
    ],
)
def test_a_key_without_its_colon_is_found_on_its_own_line(text: str, line: int, found: str) -> None:
    column = text.splitlines()[line - 1].index(found) + 1
    assert read(text)[1] == (
        f"f.yml:{line}: column {column}: YAML cannot be read: could not find expected ': ', at `{found}`; "
        "write key: value"
    )


def test_a_colon_without_its_space_is_said() -> None:
    for text, line in (("a: 1\nb:2\nc: 3\n", 2), ("b:2\nc: 3\n", 1)):
        message = read(text)[1]
        assert message.startswith(f"f.yml:{line}: column 1: YAML cannot be read: ")
        assert message.endswith(", at `b:2`; a space is missing behind the ':'")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\n  b: 2\n", 2),  # the line before is in order
        ("l:\n  - x\n    b: 2\n", 3),
        ("a:\nb: c: d\n", 2),
    ],
)
def test_another_mistake_stays_on_the_line_where_it_is_noticed(text: str, line: int) -> None:
    assert read(text)[1].startswith(f"f.yml:{line}: column ")


def test_depth_and_aliases_cannot_exhaust_the_reader() -> None:
    assert read("[" * 5000)[1] == "f.yml: is nested too deeply to be a configuration"
    laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{i}: &a{i} [" + ",".join([f"*a{i - 1}"] * 10) + "]\n" for i in range(1, 10)
    )
    assert "an alias makes this value endless" in read(laughs)[1]
