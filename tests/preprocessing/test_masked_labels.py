"""Labels that leave out what stands before a delimiter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron.data.indexed_dataset import make_dataset
from megatron.errors import DataError
from megatron.preprocessing.cli import mask_main
from megatron.preprocessing.encoding import PackedDocuments, masked_labels

SMALL = st.lists(st.integers(0, 2), min_size=1, max_size=9)


def slow(document: list[int], before: list[int]) -> list[int]:
    for at in range(len(document) - len(before) + 1):
        if document[at : at + len(before)] == before:
            stop = at + len(before)
            return [-100] * stop + document[stop:]
    return document


@given(st.lists(SMALL, max_size=9), st.lists(st.integers(0, 2), min_size=1, max_size=3))
def test_labels_are_those_of_the_slow_way(documents: list[list[int]], before: list[int]) -> None:
    flat = np.array([token for document in documents for token in document], np.uint16)
    lengths = np.array([len(document) for document in documents], np.int32)
    labels = masked_labels(PackedDocuments(flat, lengths, 3), before)
    expected = [label for document in documents for label in slow(document, before)]
    assert labels.tokens.tolist() == expected
    assert labels.lengths.tolist() == lengths.tolist()
    assert (labels.tokens.dtype, labels.empty) == (np.int32, 3)
    assert flat.tolist() == [token for document in documents for token in document]


@pytest.mark.ranks
def test_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ["Q: a\nA: b", "no delimiter", "", "A: A: c"]
    Path("a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = ["--input", "a.jsonl", "--tokenizer-type", "CharLevelTokenizer", "--append-eod"]
    delimiter = ",".join(str(byte) for byte in b"A: ")
    mask_main([*options, "--output-prefix", "out/a", "--mask-before-token", delimiter])
    text, label = (make_dataset(f"out/a_{name}_document") for name in ("text", "label"))
    assert (text.dtype, label.dtype) == (np.uint16, np.int32)
    assert text.doc_idx.tolist() == label.doc_idx.tolist() == [0, 1, 2, 3]
    assert [bytes(d.tolist()) for d in text] == [b"Q: a\nA: b\0", b"no delimiter\0", b"A: A: c\0"]
    assert label[0].tolist() == [-100] * 8 + [*b"b\0"]
    assert label[1].tolist() == text[1].tolist()
    assert label[2].tolist() == [-100] * 3 + [*b"A: c\0"]
    said = capsys.readouterr().out
    assert "2 documents hold the ids of --mask-before-token, and 11 tokens are left out" in said
    mask_main([*options, "--output-prefix", "none/a", "--mask-before-token", "1"])
    assert "labels: 0 documents hold" in capsys.readouterr().out
    # Without the flag it is the other tool.
    mask_main([*options, "--output-prefix", "plain/a"])
    assert sorted(p.name for p in Path("plain").iterdir()) == [
        "a_text_document.bin",
        "a_text_document.idx",
    ]
    assert Path("plain/a_text_document.bin").read_bytes() == text.tokens.tobytes()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--mask-before-token", "1", "--jsonl-keys", "a", "b"], "expected one key"),
        (["--mask-before-token", "1", "--jsonl-keys", "label"], "expected one key"),
        (["--mask-before-token", ""], "expected token ids"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path: Path, more: list[str], message: str) -> None:
    options = ["--input", "none.jsonl", "--output-prefix", str(tmp_path / "a")]
    with pytest.raises(DataError, match=message):
        mask_main([*options, "--tokenizer-type", "CharLevelTokenizer", *more])
