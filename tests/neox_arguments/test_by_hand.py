"""A file as users of GPT-NeoX write it from memory loads without edits, and tells what it ignores."""

from __future__ import annotations

import sys
from pathlib import Path

from megatron.neox_arguments import NeoXArgs

BY_HAND = """\
# GPT-2 pretraining setup
{
   # parallelism settings
   "pipe-parallel-size": 1,
   "model-parallel-size": 1,
   "pipe_partition_method": "type:transformer",

   # model settings
   "num-layers": 12,
   "hidden-size": 768,
   "num-attention-heads": 12,
   "seq-length": 2048,
   "max-position-embeddings": 2048,
   "norm": "layernorm",
   "pos-emb": "rotary",
   "rotary_pct": 0.25,
   "no-weight-tying": true,
   "gpt_j_residual": true,
   "output_layer_parallelism": "column",
   "attention-config": [[["flash", "global"], "all"]],

   # these should provide some speedup but take a while to build
   "scaled-upper-triang-masked-softmax-fusion": true,
   "bias-gelu-fusion": true,
   "rope_fusion": true,
   "layernorm_fusion": true,

   # init methods
   "init_method": "small_init",
   "output_layer_init_method": "wang_init",

   # optimizer settings
   "optimizer": {
     "type": "Adam",
     "params": {
       "lr": 6e-4,
       "betas": [0.9, 0.95],
       "eps": 1.0e-8,
     }
   },
   "min_lr": 0.00006,

   # for all zero_optimization options, see DeepSpeed's documentation
   "zero_optimization": {
    "stage": 1,
    "allgather_partitions": True,
    "allgather_bucket_size": 500000000,
    "overlap_comm": True,
    "reduce_scatter": True,
    "reduce_bucket_size": 5e8,
    "contiguous_gradients": True,
    "cpu_offload": False
   },

   # batch / data settings
   "train_micro_batch_size_per_gpu": 4,
   "data-impl": "mmap",
   "split": "949,50,1",

   # activation checkpointing
   "checkpoint-activations": true,
   "checkpoint-num-layers": 1,
   "partition-activations": true,
   "synchronize-each-layer": true,

   # regularization
   "gradient_clipping": 1.0,
   "weight-decay": 0.1,
   "hidden-dropout": 0.0,
   "attention-dropout": 0.0,

   # precision settings
   "precision": "bfloat16",
   "fp16": {
     "fp16": true,
     "enabled": false,
     "loss_scale": 0,
     "loss_scale_window": 1000,
     "hysteresis": 2,
     "min_loss_scale": 1
   },
   "bf16": {"enabled": true},
   "fp32_allreduce": True,

   # misc. training settings
   "train-iters": 320000,
   "lr-decay-iters": 320000,
   "distributed-backend": "nccl",
   "lr-decay-style": "cosine",
   "warmup": 0.01,
   "checkpoint-factor": 10000,
   "eval-interval": 1000,
   "eval-iters": 10,

   # logging
   "log-interval": 100,
   "steps_per_print": 10,
   "keep-last-n-checkpoints": 4,
   "wall_clock_breakdown": true,
   "use_wandb": True,
   "wandb_host": "https://api.wandb.ai",
   "wandb_project": "neox",
   "wandb_team": "us",

   # where things are
   "data-path": "data/mydataset_text_document",
   "vocab-file": "data/gpt2-vocab.json",
   "merge-file": "data/gpt2-merges.txt",
   "save": "checkpoints",
   "load": "checkpoints",
   "checkpoint_validation_with_forward_pass": False,
   "tensorboard-dir": "tensorboard",
   "log-dir": "logs",
   "launcher": "slurm",
   "hostfile": "/mock_path",
}
"""


def test_it_loads_and_tells_what_it_ignores(tmp_path: Path) -> None:
    (tmp_path / "by_hand.yml").write_text(BY_HAND)
    args = NeoXArgs.from_ymls([tmp_path / "by_hand.yml"], world_size=8)
    assert args.notes == (
        "ignored: scaled_upper_triang_masked_softmax_fusion, rope_fusion, layernorm_fusion (kernels are "
        "PyTorch's own here, whatever is fused)",
        "ignored: synchronize_each_layer (activations are recomputed by PyTorch, which neither waits nor "
        "takes the time)",
        "ignored: use_wandb, wandb_team (metrics go to metrics.jsonl and TensorBoard for now)",
        "ignored: hostfile (/mock_path is a placeholder of GPT-NeoX's files)",
        "ignored: partition_activations (there is one tensor-parallel rank)",
        "ignored: wall_clock_breakdown (DeepSpeed's timers do not run in its pipeline engine)",
        "ignored: fp16.fp16 (DeepSpeed has no such option)",
    )
    assert args.model.attention_kinds == ("flash", "global") * 6
    assert args.model.bias_gelu_fusion
    assert args.optim.lr == 6e-4
    assert args.deepspeed_config(8) == {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "optimizer": {
            "type": "Adam",
            "params": {
                "lr": 6e-4,
                "weight_decay": 0.1,
                "betas": [0.9, 0.95],
                "eps": 1e-8,
                "torch_adam": True,
            },
        },
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": 1,
            "allgather_partitions": True,
            "allgather_bucket_size": 500000000,
            "overlap_comm": True,
            "reduce_scatter": True,
            "reduce_bucket_size": 500000000,
            "contiguous_gradients": True,
            "cpu_offload": False,
        },
        "steps_per_print": sys.maxsize,  # in a pipeline
        "wall_clock_breakdown": False,  # in a pipeline
        "timers": {"throughput": {"enabled": False}},
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "dump_state": False,
        "fp16": {
            "enabled": False,
            "loss_scale": 0,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "min_loss_scale": 1,
        },
        "bf16": {"enabled": True},
        "communication_data_type": "fp32",
    }


IN_FP16 = (
    BY_HAND.replace('"enabled": false,\n     "loss_scale"', '"enabled": true,\n     "loss_scale"')
    .replace('   "precision": "bfloat16",\n', "")
    .replace('   "bf16": {"enabled": true},\n', "")
)


def test_half_precision_of_the_older_kind(tmp_path: Path) -> None:
    (tmp_path / "by_hand.yml").write_text(IN_FP16)
    args = NeoXArgs.from_ymls([tmp_path / "by_hand.yml"], world_size=8)
    assert args.model.precision == "fp16"
    assert args.loss_scaling.loss_scale_window == 1000
    config = args.deepspeed_config(8)
    assert "bf16" not in config
    assert config["fp16"] == {
        "enabled": True,
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "min_loss_scale": 1,
    }
