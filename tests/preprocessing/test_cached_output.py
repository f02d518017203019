"""`--dataset-impl cached`: the same documents as the mmap form, in int32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from megatron.data.indexed_dataset import make_dataset
from megatron.preprocessing.cli import parser, settings_from
from megatron.preprocessing.engine import preprocess


def test_both_forms_hold_the_same_documents(tmp_path: Path) -> None:
    lines = [json.dumps({"text": text}) for text in ("one", "two words", "ä")]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    opened = []
    for impl in ("mmap", "cached"):
        arguments = ["--input", str(tmp_path / "in.jsonl"), "--output-prefix", str(tmp_path / impl)]
        arguments += ["--tokenizer-type", "CharLevelTokenizer", "--dataset-impl", impl]
        preprocess(settings_from(parser().parse_args(arguments)))
        opened.append(make_dataset(tmp_path / f"{impl}_text_document"))
    mmap, cached = opened
    assert (mmap.dtype, cached.dtype) == (np.uint16, np.int32)
    assert (tmp_path / "cached_text_document.idx").read_bytes().startswith(b"TNTIDX\x00\x00")
    assert [row.tolist() for row in cached] == [row.tolist() for row in mmap]
    assert cached.doc_idx.tolist() == [0, 1, 2, 3]
