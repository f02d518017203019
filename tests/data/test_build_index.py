"""The index ahead of the job: what the tool builds is what the run looks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from token_files import letters, write_documents

from megatron.data.build_index import main
from megatron.data.datasets import DataRequest, build_datasets
from megatron.data.splits import samples_wanted
from megatron.errors import NeoXError
from megatron.neox_arguments import NeoXArgs
from megatron.runtime.world import World
from tests.support.tiny import tiny_config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_documents(tmp_path / "data" / "tiny", letters(40))
    path = tmp_path / "config.yml"
    path.write_text(
        "\n".join(
            f"{key}: {str(value).lower()}"
            for key, value in tiny_config(tmp_path).items()
            if isinstance(value, (int, float))
        )
        + f"\ndata_path: {tmp_path}/data/tiny\nsplit: 80,10,10\ntokenizer_type: CharLevelTokenizer\n"
        + "optimizer: {type: Adam, params: {lr: 0.01}}\nprecision: fp32\n"
    )
    return path


def test_a_run_finds_what_the_tool_built(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main([str(config), "--world-size", "2", "--verify"])
    said = capsys.readouterr().out
    assert "40 documents, 440 tokens" in said
    assert said.count(": built, verified") == 3
    main([str(config), "--world-size", "2"])
    assert capsys.readouterr().out.count(": was there already") == 3

    args = NeoXArgs.from_ymls([config])
    training = args.training
    assert training.train_iters is not None
    store = config.parent / "data" / "index_store"
    before = sorted(store.iterdir())
    data = build_datasets(
        DataRequest(
            args.data,
            seq_length=args.model.seq_length,
            seed=training.seed,
            wanted=samples_wanted(
                training.train_iters,
                training.eval_interval,
                training.eval_iters,
                args.batch_sizes(2).global_batch_size,
            ),
            vocab_size=512,
        ),
        World(),
    )
    assert data.test is not None
    assert sorted(store.iterdir()) == before


def test_damage_is_found(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(config)])
    (array, *_) = (config.parent / "data" / "index_store").glob("*/shuffle_idx.npy")
    content = bytearray(array.read_bytes())
    content[-1] ^= 1
    array.write_bytes(content)
    main([str(config)])
    with pytest.raises(NeoXError, match="SHA-256"):
        main([str(config), "--verify"])
    with pytest.raises(NeoXError, match="train_iters"):
        main([str(config), "--set", "train_iters=null"])


def test_epochs_instead_of_steps(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = config.read_text().replace("train_iters: 20", "train_epochs: 2")
    config.write_text(text)
    main([str(config)])
    said = capsys.readouterr().out
    # 32 documents of 11 tokens: 703 // 16
    assert "train_epochs: 2 × 352 tokens = 43 samples; // 8 samples a step = 5 steps" in said
    assert "40 samples wanted, epochs: 2" in said


def test_of_many_datasets_the_first_are_listed(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write_documents(config.parent / f"part{i}", letters(12 + i)) for i in range(11)]
    text = config.read_text().replace(
        f"data_path: {config.parent}/data/tiny\nsplit: 80,10,10",
        f"train_data_paths: [{', '.join(map(str, paths))}]",
    )
    config.write_text(text)
    main([str(config), "--world-size", "2", "--verify"])
    said = capsys.readouterr().out
    assert said.count(": built, verified") == 10
    assert "  … 2 more" in said
    assert "valid:" not in said
