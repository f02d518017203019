"""Lines → texts, and every way in which a line can be wrong."""

from __future__ import annotations

import pytest

from megatron.errors import DataError
from megatron.preprocessing.documents import parse_documents, replace_lone_surrogates
from megatron.preprocessing.readers import TextChunk


def parse(text: bytes, *keys: str, first_line: int = 1) -> list[list[str]]:
    return list(parse_documents(TextChunk("f.jsonl", first_line, text, 0), keys or ("text",)))


def test_texts_of_each_key_in_order() -> None:
    lines = b'{"a": "1", "b": "2"}\n{"b": "4", "c": 0, "a": "3"}'
    assert parse(lines, "b", "a") == [["2", "1"], ["4", "3"]]


def test_lines_of_white_space_are_no_documents_and_cr_is_white_space() -> None:
    assert parse(b'\n  \t\r\n{"text": "a"}\r\n\n') == [["a"]]


def test_only_newlines_end_a_line() -> None:
    text = "a\u2028b\u2029c\x85d"
    assert parse(f'{{"text": "{text}"}}'.encode()) == [[text]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{ 'text': 'd e f' }", r"not valid JSON: Expecting property name .* at column 3"),
        (b'{"text": "a"', "not valid JSON"),
        (b'{"text": "a"} {"text": "b"}', "not valid JSON: Extra data at column 15"),
        (b'[{"text": "a"}]', "a JSON list, not an object"),
        (b'"text"', "a JSON str, not an object"),
        (b'{"text": "\xff"}', "not UTF-8 at byte 11 of the line"),
        (b'{"text": ' + b"[" * 100_000, "not readable as JSON"),
        (b'{"n": ' + b"1" * 5_000 + b"}", "not readable as JSON"),
    ],
)
def test_a_line_that_is_no_object(line: bytes, message: str) -> None:
    with pytest.raises(DataError, match=rf"f\.jsonl, line 8: {message}") as caught:
        parse(b'{"text": "a"}\n' + line, first_line=7)
    assert "one object per line" in str(caught.value)
    assert len(str(caught.value)) < 400
    assert str(caught.value).count("\n") < 10


def test_a_missing_key_names_what_is_there() -> None:
    with pytest.raises(
        DataError, match=r"(?s)line 1: no key 'text'.*found: 'body', 'id'\n.*jsonl-keys"
    ):
        parse(b'{"body": "a", "id": 3}')
    with pytest.raises(DataError, match="found: none"):
        parse(b"{}")


@pytest.mark.parametrize("value", [b"null", b"3", b'["a"]'])
def test_a_text_that_is_no_string(value: bytes) -> None:
    with pytest.raises(DataError, match="the value of 'text' is not a string"):
        parse(b'{"text": ' + value + b"}")


def test_lone_surrogates() -> None:
    [[text]] = parse(rb'{"text": "a\ud800b \ud83e\udd99 \udc00"}')
    assert replace_lone_surrogates(text) == "a\ufffdb 🦙 \ufffd"
    for whole in ("plain", "é 🦙"):
        assert replace_lone_surrogates(whole) is whole
