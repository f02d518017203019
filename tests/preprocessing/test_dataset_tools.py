"""Token files joined, counted and shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megatron.data.indexed_dataset import MMapIndexedDatasetBuilder, make_dataset
from megatron.errors import DataError
from megatron.preprocessing.dataset_tools import count_main, merge_main, prefixes_of
from megatron.preprocessing.inspection import inspect_main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``one``: documents ab, c (two sequences); ``two``: one document d; ``wide``: as int32."""
    monkeypatch.chdir(tmp_path)
    for name, documents, dtype in (
        ("in/one", [[b"ab"], [b"c", b"cc"]], "uint16"),
        ("in/two", [[b"d"]], "uint16"),
        ("wide", [[b"e"]], "int32"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        builder = MMapIndexedDatasetBuilder(f"{name}.bin", np.dtype(dtype))
        for document in documents:
            for sequence in document:
                builder.add_item(list(sequence))
            builder.end_document()
        builder.finalize(f"{name}.idx")
    return tmp_path


@pytest.mark.parametrize("names", [["in"], ["in/one", "in/two.bin"]])
def test_merged_files_keep_their_documents(names: list[str]) -> None:
    merge_main(["--input", *names, "--output-prefix", "out/all"])
    merged = make_dataset("out/all")
    assert [bytes(x.tolist()) for x in merged] == [b"ab", b"c", b"cc", b"d"]
    assert merged.doc_idx.tolist() == [0, 1, 3, 4]


def test_what_cannot_be_merged_leaves_nothing(folder: Path) -> None:
    with pytest.raises(DataError, match="wide: holds int32, in/one holds uint16"):
        merge_main(["--input", "in/one", "wide", "--output-prefix", "out/all"])
    with pytest.raises(DataError, match="is an input as well"):
        merge_main(["--input", "in", "--output-prefix", "in/two"])
    (folder / "out").mkdir(exist_ok=True)
    with pytest.raises(DataError, match=r"out: holds no token file"):
        prefixes_of(["out"])
    assert not list((folder / "out").iterdir())
    assert len(make_dataset("in/two")) == 1


def test_counts(capsys: pytest.CaptureFixture[str]) -> None:
    count_main(["in"])
    assert capsys.readouterr().out.splitlines() == [
        "in/one: 2 documents in 3 sequences, 5 tokens (uint16)",
        "in/two: 1 documents, 1 tokens (uint16)",
        "total: 6 tokens",
    ]


def test_documents_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    inspect_main(["in/one", "--document", "1", "--tokenizer-type", "CharLevelTokenizer"])
    assert capsys.readouterr().out.splitlines()[1:] == ["--- document 1: 3 tokens", "ccc"]
    inspect_main(["in/one.idx", "--count", "9", "--ids"])
    assert capsys.readouterr().out.splitlines()[2::2] == ["[97, 98]", "[99, 99, 99]"]
    with pytest.raises(DataError, match="has documents 0 to 1, not 2"):
        inspect_main(["in/one", "--document", "2", "--ids"])
    with pytest.raises(DataError, match="--tokenizer-type is needed"):
        inspect_main(["in/one"])


def test_different_types_are_widened_where_that_is_wanted() -> None:
    merge_main(["--input", "in/one", "wide", "--output-prefix", "out/all", "--widen"])
    merged = make_dataset("out/all")
    assert merged.dtype == np.int32
    assert [bytes(x.tolist()) for x in merged] == [b"ab", b"c", b"cc", b"e"]
    assert merged.doc_idx.tolist() == [0, 1, 3, 4]


def test_floats_are_not_widened(tmp_path: Path) -> None:
    MMapIndexedDatasetBuilder("rewards.bin", np.dtype("float32")).finalize("rewards.idx")
    with pytest.raises(DataError, match="only whole numbers can be widened"):
        merge_main(["--input", "in/one", "rewards", "--output-prefix", "out/all", "--widen"])


def test_samples_and_masks_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    builder = MMapIndexedDatasetBuilder("label.bin", np.dtype("int32"))
    for sequence in ([-100, 98], [-100], [99, -100]):
        builder.add_item(sequence)
        builder.end_document()
    builder.finalize("label.idx")
    words = ["--tokenizer-type", "CharLevelTokenizer", "--labels", "label"]
    inspect_main(["in/one", "--count", "2", *words])
    assert capsys.readouterr().out.splitlines()[2::2] == ["⟦a⟧b", "⟦c⟧c⟦c⟧"]
    inspect_main(["in/one", "--sample", "0", "--seq-length", "2", "--count", "9", *words])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "--- sample 0: tokens 0 to 2",
        "⟦a⟧b‖⟦c⟧",
        "--- sample 1: tokens 2 to 4",
        "⟦c⟧c⟦c⟧",
    ]
    inspect_main(["in/one", "--sample", "0", "--seq-length", "4", "--ids"])
    assert capsys.readouterr().out.splitlines()[2] == "[97, 98]‖[99, 99, 99]"
    with pytest.raises(DataError, match=r"has 2 samples of 2 tokens in its order, .* no number 2"):
        inspect_main(["in/one", "--sample", "2", "--seq-length", "2", "--ids"])
    with pytest.raises(DataError, match="--sample needs --seq-length"):
        inspect_main(["in/one", "--sample", "2", "--ids"])
    with pytest.raises(DataError, match="not as long as those of in/two"):
        inspect_main(["in/two", "--labels", "label", "--ids"])
