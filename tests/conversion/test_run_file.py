"""The configuration beside an imported model."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron.conversion.run_file import run_file, vocabulary_multiple
from megatron.neox_arguments import NeoXArgs
from megatron.tokenizer import padded_vocab_size


@pytest.mark.parametrize(
    ("ids", "text_ids", "ranks", "expected"),
    [
        (50304, 50277, 1, 128),  # Pythia
        (32000, 32000, 1, 128),  # Llama 2
        (32000, 32000, 8, 32),
        (151936, 151665, 4, 1187),  # Qwen 2.5: no power of two comes out there
        (100, 100, 2, 2),
        (101, 101, 1, 1),
        (101, 101, 2, 1),  # two ranks cannot share 101 rows: one of padding
        (1000, 10, 1, 1000),
        (1009, 10, 2, 1024),  # nor can they share 1,009, and no smaller power of two makes room
        (100, 103, 1, 1),  # the tokenizer has ids that the model does not know
    ],
)
def test_no_padding_where_that_can_be(ids: int, text_ids: int, ranks: int, expected: int) -> None:
    multiple = vocabulary_multiple(ids, text_ids, ranks)
    assert multiple == expected
    for size in (1, 2, 4, 8):
        assert padded_vocab_size(text_ids, multiple, size) >= max(ids, text_ids)


def test_it_can_be_read_and_says_what_is_missing(tmp_path: Path) -> None:
    keys = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "seq_length": 8,
        "rms_norm_epsilon": 1e-6,
        "sliding_window_width": 4,
        "attention_config": [[["global"], 1], [["local"], 1]],
        "load": "a folder: with signs",
        "finetune": True,
    }
    text = run_file(keys, "hf/mine")
    (tmp_path / "model.yml").write_text(text)
    args = NeoXArgs.from_ymls([tmp_path / "model.yml"])
    assert {key: args.flat()[key] for key in keys} == keys
    assert "attention_config: [[[global], 1], [[local], 1]]\n" in text
    assert "# No tokenizer came with it" in text
