"""Rules between fields, precision, the shape that follows."""

from __future__ import annotations

import re
from typing import Any

import pytest

from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.sections import CheckpointingArgs, ModelArgs
from tests.support.small_config import refusal, small


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_size": 30}, "hidden_size: 30 is no multiple of num_attention_heads 4"),
        ({"num_kv_heads": 3}, "num_kv_heads: num_attention_heads 4 is no multiple of 3"),
        ({"train_epochs": 2, "train_iters": 3}, "train_epochs: train_iters is given too: keep one"),
        ({"train_epochs": 0}, "train_epochs: found 0"),
        (
            {"reshape_on_load": True, "checkpoint": {"use_node_local_storage": True}},
            "reshape_on_load: reads the parts that all ranks saved",
        ),
        (
            {"data_local_cache_limit_gb": 100},
            "data_local_cache_limit_gb: limits the copies in data_local_cache_dir, which is not set",
        ),
        (
            {"train_data_paths": ["a"], "data_path": "b"},
            "train_data_paths: data_path is given too, which would be split",
        ),
        (
            {"data_path": ..., "train_data_paths": ["a", "b"], "train_data_weights": [1]},
            "train_data_weights: 1 weights for 2 train_data_paths: one is needed for each",
        ),
        (
            {"data_path": ..., "valid_data_weights": [1]},
            "valid_data_weights: 1 weights for 0 valid_data_paths",
        ),
        (
            {"data_path": ..., "train_data_paths": ["a", "b"], "train_data_weights": [1, 0]},
            "train_data_weights.1: found 0",
        ),
        (
            {"data_path": ..., "train_data_paths": ["a", "b"], "train_label_data_paths": ["l"]},
            "train_label_data_paths: 1 label files for 2 train_data_paths: each needs its own",
        ),
        (
            {"data_path": ..., "test_data_paths": ["a", "b", "a"]},
            "test_data_paths: a is in it twice",
        ),
        (
            {"data_path": ..., "train_data_paths": ["a", "b.bin"]},
            "train_data_paths: b.bin names one file of a pair: take .bin off",
        ),
        (
            {"data_path": ..., "train_data_paths": [str(n) for n in range(1001)]},
            "train_data_paths: 1,001 datasets, the most are 1,000: merge some",
        ),
        (
            {"weight_by_num_documents": True},
            "weight_by_num_documents: weighs the members of *_data_paths, which are not given",
        ),
        ({"seq_length": 9}, "max_position_embeddings: 8 is less than seq_length 9"),
        (
            {"rotary_pct": 0.4},
            "rotary_pct: 0.4 of the 8 dimensions per head (head_dim, or hidden_size / "
            "num_attention_heads) is 3",
        ),
        (
            {"rotary_pct": 0.0},
            "rotary_pct: 0 of the 8 dimensions per head (head_dim, or hidden_size / "
            "num_attention_heads) is 0",
        ),
        (
            {"intermediate_size": 100, "expansion_factor": 4},
            "intermediate_size: 100 is not expansion_factor 4 x hidden_size 32",
        ),
        (
            {"attention_config": [[["global"], 3]]},
            "attention_config: repeats are a whole number up to",
        ),
        (
            {"attention_config": [[["global"], 1]]},
            "attention_config: describes 1 layers, but num_layers is 2",
        ),
        ({"attention_config": [[["local"], 2]]}, "attention_config: local layers see a window"),
        (
            {"attention_config": [[["golbal"], 2]]},
            "attention_config: golbal is no kind of attention",
        ),
        (
            {"attention_config": ["global"]},
            "attention_config: expected [[[kinds...], repeats], ...]",
        ),
        (
            {"pipe_parallel_size": 6},
            "pipe_parallel_size: 6 stages for 5 layers with weights",
        ),
        (
            {"pipe_parallel_size": 2, "pipe_partition_method": "type:mamba"},
            "pipe_partition_method: 'mamba' finds none of the layers: EmbeddingPipe, ",
        ),
        (
            {"pipe_parallel_size": 2, "flops_profiler": {"enabled": True}},
            "flops_profiler.enabled: DeepSpeed's timers stop a pipeline of 2 stages",
        ),
        (
            {"pipe_parallel_size": 2, "use_node_local_storage": True},
            "use_node_local_storage: is true, but each stage of a pipeline writes its part once",
        ),
        (
            {
                "model_parallel_size": 2,
                "sequence_parallel": True,
                "deepspeed_extra_args": {"pipeline": {"pipe_partitioned": True}},
            },
            "deepspeed_extra_args.pipeline.pipe_partitioned: splits among tensor-parallel ranks what",
        ),
        (
            {"model_parallel_size": 8},
            "model_parallel_size: 8 ranks cannot share the attention heads evenly: 4 is no multiple "
            "(see num_attention_heads)",
        ),
        (
            {"model_parallel_size": 4, "intermediate_size": 66},
            "model_parallel_size: 4 ranks cannot share the MLP's width evenly: 66 is no multiple",
        ),
        (
            {"model_parallel_size": 6, "num_attention_heads": 12, "num_kv_heads": 4}
            | {"hidden_size": 48, "intermediate_size": 96},
            "model_parallel_size: 6 ranks cannot share num_kv_heads 4 evenly: one must be a multiple",
        ),
        (
            {"model_parallel_size": 4, "sequence_parallel": True, "seq_length": 6},
            "sequence_parallel: 4 ranks (model_parallel_size) cannot share seq_length 6 evenly",
        ),
        (
            {"context_parallel_size": 2, "pipe_parallel_size": 1},
            "context_parallel_size: 2 ranks cannot share sequences in a pipeline yet (pipe_parallel_size "
            "is 1): use pipe_parallel_size: 0, and model_parallel_size or ZeRO",
        ),
        (
            {"context_parallel_size": 4, "model_parallel_size": 2},
            "context_parallel_size: 4 ranks cannot share 2 attention heads evenly (num_attention_heads 4 / "
            "model_parallel_size 2), of which each attends with some: use a divisor of 2",
        ),
        (
            {"context_parallel_size": 4, "num_attention_heads": 12, "num_kv_heads": 3}
            | {"hidden_size": 48},
            "context_parallel_size: 4 ranks cannot share 3 key/value heads evenly (num_kv_heads 3 / "
            "model_parallel_size 1): one must be a multiple of the other",
        ),
        (
            {"context_parallel_size": 4, "seq_length": 6},
            "context_parallel_size: 4 ranks cannot share seq_length 6 evenly: it must be a multiple of 4",
        ),
        (
            {"context_parallel_size": 2, "model_parallel_size": 2, "sequence_parallel": True}
            | {"seq_length": 6},
            "context_parallel_size: 4 ranks (with sequence_parallel, times model_parallel_size 2) cannot "
            "share seq_length 6 evenly: it must be a multiple of 4",
        ),
        (
            {"zero_optimization": {"stage": 4}},
            "zero_optimization.stage: found 4; stages are 0, 1, 2 and 3",
        ),
        ({"min_lr": 0.01}, "min_lr: 0.01 is above the learning rate 0.001"),
        ({"lr_decay_fraction": 0.5}, "lr_decay_fraction: lr_decay_iters is given too"),
        (
            {"override_lr_scheduler": True, "use_checkpoint_lr_scheduler": True},
            "override_lr_scheduler: use_checkpoint_lr_scheduler is true too",
        ),
        ({"split": "9,x"}, 'split: found "9,x", expected three shares'),
        ({"split": "0,0,0"}, 'split: found "0,0,0", expected three shares'),
        ({"split": "1,1,1,1"}, 'split: found "1,1,1,1", expected three shares'),
        ({"data_path": "d/x.bin"}, "data_path: d/x.bin names one file of a pair: take .bin off"),
        (
            {"reset_position_ids": True, "pos_emb": "none"},
            "reset_position_ids: pos_emb is none: there are no positions to reset",
        ),
        (
            {"reset_position_ids": True, "pos_emb": "rpe"},
            "reset_position_ids: pos_emb is rpe: there are no positions to reset",
        ),
        (
            {"intermediate_size": 1, "activation": "swiglu"},
            "intermediate_size: leaves nothing of the MLP's width, which is 1 before activation: swiglu",
        ),
        (
            {"expansion_factor": 0.001},
            "expansion_factor: leaves nothing of the MLP's width, which is 0 before activation: gelu",
        ),
        (
            {"optimizer": {"type": "SGD", "params": {"lr": 0.1, "nesterov": True}}},
            "optimizer.params.nesterov: is true: it looks ahead along the momentum, and needs one above 0",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"lr": 0.1, "foreach": True, "fused": True}}},
            "optimizer.params.fused: is true, and so is foreach: keep one of the two",
        ),
        ({"checkpoint_factor": 2.5}, "checkpoint_factor: 2.5 is no whole number of steps"),
        (
            {"checkpoint_factor": 1, "checkpoint_scale": "log"},
            "checkpoint_factor: 1 must be above 1",
        ),
        (
            {"text_gen_type": "input-file"},
            "sample_input_file: missing: text_gen_type is input-file",
        ),
        (
            {"num_layers": 10**9},
            "num_layers: found 1000000000, expected a whole number from 1 up to",
        ),
        ({"load": None, "finetune": True}, "finetune: is true, but there are no weights to start"),
        (
            {"zero_optimization": {"mics_shard_size": 2}},
            "zero_optimization.mics_shard_size: DeepSpeed no longer has it",
        ),
        (
            {"zero_optimization": {"offload_optimizer": {"devise": "cpu"}}},
            "zero_optimization.offload_optimizer.devise: unknown key; did you mean device?",
        ),
        ({"tensorboard": {"enabled": "yes"}}, 'tensorboard.enabled: found "yes", expected true or'),
        ({"wandb": {"projekt": "x"}}, "wandb.projekt: unknown key; did you mean project?"),
        *(
            (
                {"optimizer": {"type": "Adam", "params": {written: 1e-4}}},
                f"optimizer.params.{written}: unknown key; did you mean {meant}?",
            )
            for written, meant in {
                "learning_rate": "lr",
                "learning_rte": "lr",
                "adam_epsilon": "eps",
                "beta1": "betas",
                "wd": "weight_decay",
                "weight_deacy": "weight_decay",
            }.items()
        ),
        (
            {"optimizer": {"type": "Adam", "learning_rate": 1e-4}},
            "optimizer.learning_rate: unknown key; did you mean params.lr?",
        ),
        (
            {"zero_optimization": {"zero_stage": 1}},
            "zero_optimization.zero_stage: unknown key; did you mean stage?",
        ),
        (
            {"optimizer": {"type": "SGD", "params": {"lr": 1e-4, "beta1": 0.9}}},
            "optimizer.params.beta1: unknown key; known here: dampening, lr, momentum, nesterov, weight",
        ),
        (
            {"deepspeed_extra_args": {"dataloader_drop_lst": True}},
            "deepspeed_extra_args.dataloader_drop_lst: unknown key; did you mean dataloader_drop_last?",
        ),
        (
            {"deepspeed_extra_args": {"timers": {"throughput": 3}}},
            "deepspeed_extra_args.timers.throughput: found 3, expected a group",
        ),
        ({"deepspeed": False}, "deepspeed: found false: training always runs through"),
        (
            {"scheduler": {"type": "WarmupLR"}},
            "scheduler: found {'type': 'WarmupLR'}: lr_decay_style, warmup and min_lr",
        ),
        (
            {"elasticity": {"enabled": True}},
            "elasticity: found {'enabled': True}: the batch keys set",
        ),
        ({"autotuning": {"enabled": True}}, "autotuning: found {'enabled': True}: not supported"),
        (
            {"deepspeed_extra_args": {"nebula": {}}},
            "deepspeed_extra_args.nebula: DeepSpeed no longer has it",
        ),
        (
            {"deepspeed_extra_args": {"optimizer": {}}},
            "deepspeed_extra_args.optimizer: it is a key of its own",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"bias_correction": True}}},
            "optimizer.params.bias_correction: only DeepSpeed's own Adam has it",
        ),
        (
            {"checkpoint": {"load_universal": True}},
            "checkpoint.load_universal: is not supported yet: take it out, and set reshape_on_load: true",
        ),
        (
            {"bf16": {"enabled": False, "bf16_master_weights_and_grads": True}},
            "bf16.bf16_master_weights_and_grads: is not supported yet",
        ),
        ({"is_pipe_parallel": True}, "is_pipe_parallel: is true, but pipe_parallel_size is 0"),
    ],
)
def test_rule(changes: dict[str, Any], text: str) -> None:
    assert refusal(**changes).startswith(text)


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_2_and_3_are_refused_with_a_pipeline(stage: int) -> None:
    said = refusal(zero_optimization={"stage": stage}, pipe_parallel_size=2)
    assert f"zero_optimization.stage: stage {stage} cannot run in DeepSpeed's pipeline" in said


def test_missing_keys_come_in_one_line() -> None:
    assert refusal(num_layers=..., seq_length=..., attention_config=...) == (
        "num_layers, seq_length: missing: every configuration needs them"
    )


def test_a_mistyped_required_key_is_not_missing_too() -> None:
    assert (
        refusal(hidden_size=..., hiden_size=32)
        == "hiden_size: unknown key; did you mean hidden_size?"
    )


def test_keys_in_a_group_that_is_none_say_where_they_stand() -> None:
    said = refusal(mup={"use_mup": True, "attn-temperatur": 2, "xyz": 3})
    assert said.splitlines()[1:] == [
        "  mup.use_mup: it is a key of its own here: write it at the top level",
        "  mup.attn_temperatur: unknown key; did you mean mup_attn_temp, at the top level?",
        "  mup.xyz: unknown key",
    ]
    # A group that there is, in other words.
    assert refusal(checkpont={"use_node_local_storage": True}) == (
        "checkpont: unknown key; did you mean checkpoint?"
    )
    assert refusal(xyz={"abc": 1}).startswith("xyz: unknown key; configs/")


def test_rules_and_types_come_together() -> None:
    lines = refusal(num_kv_heads=3, seed="x", autotuning={"enabled": True}).splitlines()
    assert len(lines) == 4


# Precision: one source of truth.


@pytest.mark.parametrize(
    ("changes", "precision", "stage"),
    [
        ({}, "fp32", 0),
        ({"precision": ...}, "fp32", 0),
        ({"precision": "bf16"}, "bfloat16", 1),
        ({"precision": ..., "bf16": {"enabled": True}}, "bfloat16", 1),
        ({"precision": ..., "bf16": {"enabled": False}, "fp16": {"enabled": False}}, "fp32", 0),
        (
            {"precision": "bfloat16", "bf16": {"enabled": True}, "zero_optimization": ...},
            "bfloat16",
            1,
        ),
        ({"precision": "fp32", "zero_optimization": {"stage": 1}}, "fp32", 1),
        ({"precision": ..., "fp16": {"type": "bfloat16", "enabled": True}}, "bfloat16", 1),
        ({"precision": "bf16", "fp16": {"type": "bfloat16", "enabled": True}}, "bfloat16", 1),
        ({"precision": "fp16"}, "fp16", 1),
        ({"precision": "half", "fp16": {"enabled": True}}, "fp16", 1),
        ({"precision": ..., "fp16": {"fp16": True, "enabled": True}}, "fp16", 1),
    ],
)
def test_precision(changes: dict[str, Any], precision: str, stage: int) -> None:
    args = NeoXArgs.from_dict(small(**changes))
    assert (args.model.precision, args.optim.zero_stage) == (precision, stage)
    half = precision != "fp32" and (changes.get("zero_optimization", {}) is ... or stage == 1)
    assert any("runs as 1" in note for note in args.notes) == half


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bf16": {"enabled": True}}, "precision: contradiction: precision says fp32"),
        (
            {"precision": "bfloat16", "bf16": {"enabled": False}},
            "precision: is bfloat16, but bf16.enabled is",
        ),
        (
            {"precision": "bfloat16", "fp16": {"enabled": True}},
            "precision: contradiction: precision says bf",
        ),
        (
            {"precision": "fp32", "fp16": {"type": "bf16", "enabled": True}},
            "precision: contradiction: precision says fp32, fp16.enabled says bfloat16",
        ),
        (
            {"precision": "fp16", "bf16": {"enabled": True}},
            "precision: contradiction: precision says fp16, bf16.enabled says bfloat16",
        ),
        (
            {"precision": "fp16", "fp16": {"enabled": False}},
            "precision: is fp16, but fp16.enabled is",
        ),
        (
            {"precision": "fp16", "loss_scale": 128, "fp16": {"loss_scale": 64}},
            "loss_scale: found 128, but fp16.loss_scale is 64: keep one",
        ),
        (
            {"precision": "fp16", "loss_scale": 128, "dynamic_loss_scale": True},
            "dynamic_loss_scale: is true, but loss_scale fixes the factor at 128: keep one",
        ),
        (
            {"precision": "fp16", "dynamic_loss_scale": False},
            "dynamic_loss_scale: is false, but loss_scale fixes no factor: give one",
        ),
        (
            {"precision": "fp16", "fp16": {"fp16_master_weights_and_grads": True}},
            "fp16.fp16_master_weights_and_grads: is not supported yet: take it out",
        ),
        (
            {"precision": "fp16", "data_types": {"grad_accum_dtype": "bf16"}},
            "data_types.grad_accum_dtype: gradients of a model in fp16 cannot be added up in bf16: use",
        ),
        (
            {"precision": "bfloat16", "bf16": {"check_grad_overflow": False}},
            "bf16.check_grad_overflow: is false: gradients that are no numbers would be put into the",
        ),
        (
            {"precision": "fp16", "fp16": {"min_loss_scale": 0}},
            "fp16.min_loss_scale: found 0, expected a number above 0",
        ),
        (
            {"precision": "fp16", "fp16": {"initial_scale_power": 2000}},
            "fp16.initial_scale_power: found 2000, expected a whole number from 0 up to 127",
        ),
        (
            {"torch_autocast": {"enabled": True}},
            "torch_autocast: found {'enabled': True}: not used",
        ),
        (
            {"amp": {"enabled": True}},
            "amp: found {'enabled': True}: DeepSpeed no longer has it",
        ),
    ],
)
def test_contradicting_precision(changes: dict[str, Any], text: str) -> None:
    assert refusal(**changes).startswith(text)


# What follows from the shape.


@pytest.mark.parametrize(
    ("intermediate", "multiple", "hidden", "width"),
    # Published widths: Llama 7B, 13B, 30B, 65B; Llama 2 70B; and Mistral 7B as three times its width.
    [
        (32768, 256, 4096, 11008),
        (40960, 256, 5120, 13824),
        (53248, 256, 6656, 17920),
        (65536, 256, 8192, 22016),
        (86016, 1, 8192, 28672),
        (43008, 1, 4096, 14336),
    ],
)
def test_gated_width(intermediate: int, multiple: int, hidden: int, width: int) -> None:
    model = ModelArgs(
        hidden_size=hidden,
        intermediate_size=intermediate,
        mlp_multiple_of=multiple,
        activation="swiglu",
    )
    assert model.mlp_width == width


def test_plain_width() -> None:
    assert ModelArgs(hidden_size=768).mlp_width == 3072
    assert ModelArgs(hidden_size=768, expansion_factor=3.5).mlp_width == 2688
    assert ModelArgs(hidden_size=10, intermediate_size=33, mlp_multiple_of=8).mlp_width == 48


@pytest.mark.parametrize(
    ("changes", "more", "text"),
    [
        # Fewer key/value heads than ranks, of tensor or of context parallelism.
        (
            {"model_parallel_size": 8, "num_attention_heads": 8, "num_kv_heads": 2},
            {"model_parallel_size": 7},
            "model_parallel_size: 7 ranks cannot share",
        ),
        (
            {"context_parallel_size": 4, "num_attention_heads": 8, "num_kv_heads": 2},
            {"context_parallel_size": 3},
            "context_parallel_size: 3 ranks cannot share",
        ),
        # Only sequence_parallel has the ranks of both share the tokens.
        (
            {"context_parallel_size": 2, "model_parallel_size": 2, "seq_length": 6},
            {"sequence_parallel": True},
            "context_parallel_size: 4 ranks .* cannot share seq_length 6",
        ),
        (
            {"precision": "bfloat16", "data_types": {"grad_accum_dtype": "fp32"}},
            {"data_types": {"grad_accum_dtype": "fp16"}},
            "data_types.grad_accum_dtype: gradients of a model in bfloat16 cannot be added up in fp16",
        ),
        (
            {"rotary_scaling": "linear", "rotary_scaling_factor": 1},
            {"rotary_scaling_factor": 0.99},
            "rotary_scaling_factor: 0.99 is below 1",
        ),
    ],
    ids=str,
)
def test_what_just_fits_is_accepted(
    changes: dict[str, Any], more: dict[str, Any], text: str
) -> None:
    """As it is written; one step more is refused."""
    values = NeoXArgs.from_dict(small(**changes)).flat()
    assert {key: values[key] for key in changes} == changes
    assert re.search(text, refusal(**(changes | more)))


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        # By hand: 100x4 words, 8x4 positions; per layer norms 2x8, qkv 4x12+12, dense 4x4+4,
        # mlp 4x16+16 and 16x4+4; final norm 8.
        ({"pos_emb": "learned"}, 400 + 32 + 2 * (16 + 60 + 20 + 80 + 68) + 8),
        ({"no_weight_tying": True}, 800 + 2 * 244 + 8),
        # GQA with one kv head of 2: qkv 4x8; RMSNorm 4; SwiGLU: total 10 of 16, width 5.
        (
            {
                "num_kv_heads": 1,
                "norm": "rmsnorm",
                "activation": "swiglu",
                "use_bias_in_attn_linear": False,
                "use_bias_in_mlp": False,
            },
            400 + 2 * (8 + 32 + 16 + 40 + 20) + 4,
        ),
    ],
)
def test_parameter_count(changes: dict[str, Any], count: int) -> None:
    shape: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 4,
        "num_attention_heads": 2,
        "max_position_embeddings": 8,
        "pos_emb": "none",
    }
    assert ModelArgs(**(shape | changes)).parameter_count(100) == count


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (
            {"fp16": {"fp16": True, "enabled": False, "loss_scale": 0}},
            "ignored: fp16.fp16 (DeepSpeed has no such option)",
        ),
        (
            {"precision": "bfloat16", "loss_scale": 128, "hysteresis": 2},
            "ignored: fp16.loss_scale (precision is bfloat16: only fp16 scales the loss)",
        ),
        (
            {"precision": "bfloat16", "bf16": {"enabled": True, "loss_scale": 0, "hysteresis": 2}},
            "ignored: bf16.loss_scale, bf16.hysteresis (DeepSpeed has no such option)",
        ),
        (
            {"activation_checkpointing": {"partition_activations": True}},
            "ignored: activation_checkpointing (activations are recomputed by PyTorch: see "
            "checkpoint_activations, partition_activations and checkpoint_in_cpu)",
        ),
        (
            {"partition_activations": True, "checkpoint_in_cpu": True},
            "ignored: partition_activations, checkpoint_in_cpu (checkpoint_activations is false: nothing "
            "is recomputed)",
        ),
        (
            {"partition_activations": True, "checkpoint_activations": True},
            "ignored: partition_activations (there is one tensor-parallel rank)",
        ),
        (
            {
                "partition_activations": True,
                "checkpoint_activations": True,
                "model_parallel_size": 2,
                "sequence_parallel": True,
            },
            "ignored: partition_activations (sequence_parallel has split the activations already)",
        ),
    ],
)
def test_what_has_no_effect_is_said(changes: dict[str, Any], note: str) -> None:
    assert note in NeoXArgs.from_dict(small(**changes)).notes


def test_attention_kinds() -> None:
    assert NeoXArgs.from_dict(small(attention_config=...)).model.attention_kinds == (
        "global",
        "global",
    )
    args = NeoXArgs.from_dict(
        small(num_layers=5, attention_config=[[["flash"], 1], [["global", "flash"], "all"]])
    )
    assert args.model.attention_kinds == ("flash", "global", "flash", "global", "flash")


@pytest.mark.parametrize(
    ("args", "steps"),
    [
        ({"checkpoint_factor": 3.0}, {3, 6, 9}),
        ({"checkpoint_factor": 4.0, "extra_save_iters": (0, 1, 99)}, {0, 1, 4, 8}),
        ({"checkpoint_factor": 2.0, "checkpoint_scale": "log"}, {1, 2, 4, 8}),
        ({"checkpoint_factor": 1.1, "checkpoint_scale": "log"}, set(range(1, 11))),
        ({}, set()),
    ],
)
def test_save_steps(args: dict[str, Any], steps: set[int]) -> None:
    assert CheckpointingArgs(**args).save_steps(10) == steps


def test_sequence_parallelism_of_one_rank_is_said_to_be_ignored() -> None:
    note = "ignored: sequence_parallel (there is one tensor-parallel rank)"
    assert note in NeoXArgs.from_dict(small(sequence_parallel=True)).notes
    shared = small(sequence_parallel=True, model_parallel_size=4)
    assert note not in NeoXArgs.from_dict(shared, world_size=4).notes
