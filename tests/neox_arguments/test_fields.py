"""Types, choices, groups, aliases: what each value may be."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from megatron.errors import ConfigError
from megatron.neox_arguments import NeoXArgs
from tests.support.small_config import small


def problems(**changes: Any) -> list[str]:
    """The lines about a configuration with these changes; none if it is fine."""
    try:
        NeoXArgs.from_dict(small(**changes))
    except ConfigError as error:
        lines = str(error).splitlines()
        return [line.strip() for line in lines[1:]] if lines[0].endswith("problems:") else lines
    return []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"train_iters": "10"},
            'train_iters: found "10", expected a whole number from 0, or null: ',
        ),
        ({"train_iters": 1.5}, "train_iters: found 1.5, expected a whole number from 0"),
        ({"train_iters": True}, "train_iters: found true, expected a whole number from 0"),
        ({"num_layers": [2]}, "num_layers: found [2], expected a whole number from 1"),
        ({"num_layers": 0}, "num_layers: found 0, expected a whole number from 1"),
        ({"seed": None}, "seed: found null, expected a whole number from 0"),
        ({"warmup": "1.0e_8"}, 'warmup: found "1.0e_8", expected a number from 0 up to 1'),
        ({"hidden_dropout": 1}, "hidden_dropout: found 1, expected a number from 0 below 1"),
        (
            {"gradient_clipping": float("inf")},
            "gradient_clipping: found inf, expected a number from 0",
        ),
        ({"gradient_clipping": 10**400}, "gradient_clipping: found 1000"),
        (
            {"seed": 2**32},
            "seed: found 4294967296, expected a whole number from 0 up to 4294967295",
        ),
        ({"mmap_warmup": 1}, "mmap_warmup: found 1, expected true or false"),
        ({"mmap_warmup": "yes"}, 'mmap_warmup: found "yes", expected true or false'),
        ({"data_path": 3}, "data_path: found 3, expected a text, or null"),
        ({"norm": "rms"}, 'norm: found "rms", expected one of layernorm, rmsnorm'),
        (
            {"norm": "layer_norm"},
            'norm: found "layer_norm", expected one of layernorm, rmsnorm, non_parametric_layernorm, '
            "scalenorm; did you mean layernorm?",
        ),
        (
            {"norm": "te_rmsnorm"},
            "norm: te_rmsnorm is not supported yet; choose one of layernorm, rmsnorm",
        ),
        ({"data_impl": "lazy"}, 'data_impl: found "lazy", expected one of infer, mmap, cached'),
        (
            {"extra_save_iters": [1, -2]},
            "extra_save_iters.1: found -2, expected a whole number from 0",
        ),
        (
            {"zero_optimization": 1},
            "zero_optimization: found 1, expected a group of keys { ... }, or null",
        ),
        (
            {"zero_optimization": {"stag": 1}},
            "zero_optimization.stag: unknown key; did you mean stage?",
        ),
        (
            {"optimizer": {"type": "Lion"}},
            "optimizer.type: lion is not supported yet; choose one of adam,",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"lr": "0.1", "betas": [0.9]}}},
            "optimizer.params.betas: found [0.9], expected two numbers",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"betas": [0.9, "x"]}}},
            'optimizer.params.betas.1: found "x", expected a number from 0 below 1',
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"momentum": 1}}},
            "optimizer.params.momentum: unknown key",
        ),
        ({"batch_size": 3}, "batch_size: given twice, first as train_micro_batch_size_per_gpu"),
        ({"clip_grad": -1}, "clip_grad: found -1, expected a number from 0"),
        ({"lr": 0.5}, "lr: found 0.5, but optimizer.params.lr is 0.001"),
        (
            {"batch_size": None, "gas": 4, "gradient_accumulation_steps": 5},
            "gradient_accumulation_steps: given twice, first as gas with 4, here with 5",
        ),
        (
            {"fp16": {"loss_scale": 1, "loss-scale": 2}},
            "fp16.loss_scale: given twice, here as loss-scale: keep one",
        ),
        (
            {"lr": 0.5, "optimizer": ["Adam"]},
            "optimizer: found ['Adam'], expected a group of keys",
        ),
        (
            {"deepspeed_extra_args": {"compile": {"enabled": True}}},
            "deepspeed_extra_args.compile: DeepSpeed's own is not supported here: take it out",
        ),
        (
            {"zero_optimization": {"zenflow": {"select_interval": [1]}}},
            "zero_optimization.zenflow.select_interval: found [1], expected a whole number, or a text",
        ),
        ({"load": None, "finetune": None, "iteration": -1}, "iteration: found -1"),
        ({"world_size": "two"}, 'world_size: found "two", expected a whole number from 1'),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], line: str) -> None:
    found = problems(**changes)
    assert any(text.startswith(line) for text in found), found


@pytest.mark.parametrize(
    "changes",
    [
        {"train_iters": 1e3},
        {"hidden_dropout": 0},
        {"clip_grad": 0.5, "gradient_clipping": 0.5},
        {"batch_size": 2},
        {"gas": 2},
        {"lr": 0.001, "zero_stage": 0, "optimizer_type": "adam"},
        {"zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8, "overlap_comm": None}},
        {"save": None, "hostfile": None, "load": ""},
        {"checkpoint_scale": "log", "checkpoint_factor": 1.5},
        {"world_size": 1, "rank": 0, "padded_vocab_size": 384},
    ],
)
def test_what_fits(changes: dict[str, Any]) -> None:
    assert problems(**changes) == []


def test_frozen_at_every_depth_and_through_pickle() -> None:
    args = NeoXArgs.from_dict(small())
    with pytest.raises(AttributeError):
        args.model.hidden_size = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="frozen"):
        args.optim.optimizer["params"]["lr"] = 3  # type: ignore[index]
    assert args.optim.optimizer is not None
    assert args.optim.optimizer["params"]["betas"] == (0.9, 0.95)
    again = pickle.loads(pickle.dumps(args))
    assert again == args
    with pytest.raises(TypeError, match="frozen"):
        again.optim.optimizer.pop("params")


def test_the_callers_values_are_left_alone() -> None:
    config = small(lr=0.001)
    NeoXArgs.from_dict(config, overrides=["optimizer.params.lr=1e-4"])
    assert config == small(lr=0.001)


def test_flat_reading() -> None:
    args = NeoXArgs.from_dict(small())
    assert args.hidden_size == args.model.hidden_size == 32
    assert args.launcher == "pdsh"
    assert args.flat()["optimizer"] == small()["optimizer"] | {
        "params": {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1.0e-8, "weight_decay": 0.1}
    }
    with pytest.raises(AttributeError, match="no key hiden_size; did you mean hidden_size"):
        _ = args.hiden_size


def test_hash_follows_the_values_only() -> None:
    first = NeoXArgs.from_dict(small())
    assert first.hash() == NeoXArgs.from_dict(small(lr=1e-3)).hash()
    assert (
        first.hash() == NeoXArgs.from_dict(small(**{"train-iters": 3, "train_iters": ...})).hash()
    )
    assert first.hash() != NeoXArgs.from_dict(small(seed=2)).hash()


def test_runtime_values_are_checked_not_obeyed() -> None:
    args = NeoXArgs.from_dict(small(padded_vocab_size=384, iteration=5, world_size=4))
    assert args.checkpointing.iteration is None
    args.check_runtime(padded_vocab_size=384, iteration=5)
    with pytest.raises(
        ConfigError, match="padded_vocab_size: the configuration says 384, this run has 512"
    ):
        args.check_runtime(padded_vocab_size=512)
    with pytest.raises(ConfigError, match="world_size: the file says 4, this run has 2 ranks"):
        NeoXArgs.from_dict(small(world_size=4), world_size=2)
    with pytest.raises(ConfigError) as error:
        NeoXArgs.from_dict(small(world_size=4, rank=3, train_batch_size=3), world_size=1)
    assert str(error.value) == "world_size: the file says 4, this run has 1 rank"
    with pytest.raises(ConfigError, match="rank: found 2, but the ranks of this run are 0 to 1"):
        NeoXArgs.from_dict(small(rank=2), world_size=2)


def test_ignored_keys_are_named_once_with_the_reason() -> None:
    changes = {
        "scaled-upper-triang-masked-softmax-fusion": True,
        "layernorm_fusion": True,
        "rope_fusion": False,
        "partition_activations": True,
        "use_wandb": True,
        "wandb_project": "neox",
        "wandb_team": "us",
        "te_fp8_format": "hybrid",
        "no_load_rng": True,
    }
    notes = NeoXArgs.from_dict(small(**changes)).notes
    kernels = "kernels are PyTorch's own here, whatever is fused"
    assert (
        f"ignored: scaled_upper_triang_masked_softmax_fusion, layernorm_fusion ({kernels})" in notes
    )
    assert (
        "ignored: use_wandb, wandb_team (metrics go to metrics.jsonl and TensorBoard for now)"
        in notes
    )
    assert not any("rope_fusion" in note for note in notes)
    assert len(notes) == 4


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"pos_valid_label_data_paths": ["a"]},
            "pos_valid_label_data_paths: found ['a']: not supported yet",
        ),
        ({"moe_num_experts": 8}, "moe_num_experts: found 8: experts are not supported yet"),
        ({"train_impl": "dpo"}, 'train_impl: found "dpo": only normal'),
    ],
)
def test_refused_keys(changes: dict[str, Any], line: str) -> None:
    assert [text[: len(line)] for text in problems(**changes)] == [line]


def test_refused_keys_at_their_off_value_are_silent() -> None:
    off = {
        "moe_num_experts": 1,
        "train_impl": "normal",
        "use_mup": False,
        "elasticity": {"enabled": False, "min_gpus": 1},
        "sparse_attention": None,
    }
    assert NeoXArgs.from_dict(small(**off)).notes == NeoXArgs.from_dict(small()).notes


def test_require() -> None:
    args = NeoXArgs.from_dict(small(train_iters=..., data_path=...))
    with pytest.raises(ConfigError, match="training needs train_iters, data_path: not given"):
        args.require("seed", "train_iters", "data_path", purpose="training")
    args.require("seed", purpose="training")
