"""Names beside the fields: values that only a run knows, second names, short names, others' names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatron.neox_arguments.typed import NonNegativeInt, PositiveInt


@dataclass(frozen=True)
class RuntimeValue:
    """A value that only a run knows: its type, and what it is."""

    annotation: Any
    text: str


# Values that are known only at run time. One written in a file is checked then, not obeyed.
RUNTIME: dict[str, RuntimeValue] = {
    "rank": RuntimeValue(NonNegativeInt | None, "Global rank of a process, counted from 0."),
    "local_rank": RuntimeValue(NonNegativeInt | None, "Rank of a process on its host, from 0."),
    "world_size": RuntimeValue(PositiveInt | None, "Number of processes of the run."),
    "padded_vocab_size": RuntimeValue(
        PositiveInt | None,
        "Rows of the word embedding; follows from the tokenizer and `make_vocab_size_divisible_by`.",
    ),
    "is_pipe_parallel": RuntimeValue(bool | None, "Whether `pipe_parallel_size` is above 0."),
}

# Two names of one field: both may be written, with the same value.
ALIASES: dict[str, str] = {
    "batch_size": "train_micro_batch_size_per_gpu",
    "gas": "gradient_accumulation_steps",
    "clip_grad": "gradient_clipping",
    "bfloat16": "bf16",
}

# Flat keys that say what a nested key says; both may be written, with the same value.
SHORTHANDS: dict[str, tuple[str, ...]] = {
    "optimizer_type": ("optimizer", "type"),
    "lr": ("optimizer", "params", "lr"),
    "weight_decay": ("optimizer", "params", "weight_decay"),
    "use_node_local_storage": ("checkpoint", "use_node_local_storage"),
    "loss_scale": ("fp16", "loss_scale"),
    "loss_scale_window": ("fp16", "loss_scale_window"),
    "min_scale": ("fp16", "min_loss_scale"),
    "hysteresis": ("fp16", "hysteresis"),
    "zero_stage": ("zero_optimization", "stage"),
    "zero_reduce_scatter": ("zero_optimization", "reduce_scatter"),
    "zero_contiguous_gradients": ("zero_optimization", "contiguous_gradients"),
    "zero_reduce_bucket_size": ("zero_optimization", "reduce_bucket_size"),
    "zero_allgather_bucket_size": ("zero_optimization", "allgather_bucket_size"),
}

# What other trainers, and older GPT-NeoX files, call things.
RENAMED: dict[str, str] = {
    "save_interval": "checkpoint_factor",
    "save_every": "checkpoint_factor",
    "checkpoint_interval": "checkpoint_factor",
    "max_steps": "train_iters",
    "num_steps": "train_iters",
    "total_iters": "train_iters",
    "n_layer": "num_layers",
    "n_layers": "num_layers",
    "num_hidden_layers": "num_layers",
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "dim": "hidden_size",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "num_heads": "num_attention_heads",
    "num_key_value_heads": "num_kv_heads",
    "num_query_groups": "num_kv_heads",
    "ffn_hidden_size": "intermediate_size",
    "context_length": "seq_length",
    "max_seq_len": "seq_length",
    "sequence_length": "seq_length",
    "block_size": "seq_length",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "global_batch_size": "train_batch_size",
    "grad_accumulation_steps": "gradient_accumulation_steps",
    "mlp_type": "activation",
    "max_grad_norm": "gradient_clipping",
    "grad_clip": "gradient_clipping",
    "learning_rate": "lr",
    "warmup_ratio": "warmup",
    "warmup_iters": "warmup",
    "warmup_steps": "warmup",
    "lr_scheduler_type": "lr_decay_style",
    "tensor_parallel_size": "model_parallel_size",
    "tensor_model_parallel_size": "model_parallel_size",
    "tp_size": "model_parallel_size",
    "pipeline_parallel_size": "pipe_parallel_size",
    "pipeline_model_parallel_size": "pipe_parallel_size",
    "pp_size": "pipe_parallel_size",
    "cp_size": "context_parallel_size",
    "ulysses_parallel_size": "context_parallel_size",
    "rope_theta": "rotary_emb_base",
    "rotary_base": "rotary_emb_base",
    "rms_norm_eps": "rms_norm_epsilon",
    "layer_norm_eps": "layernorm_epsilon",
    "tie_word_embeddings": "no_weight_tying",
    "activation_function": "activation",
    "hidden_act": "activation",
    "dropout": "hidden_dropout",
    "max_new_tokens": "maximum_tokens",
    "output_dir": "save",
    "resume_from_checkpoint": "load",
    "save_total_limit": "keep_last_n_checkpoints",
    "dataset_path": "data_path",
    "tokenizer_path": "vocab_file",
    "merges_file": "merge_file",
    "dtype": "precision",
    "dataloader_num_workers": "num_workers",
    "logging_steps": "log_interval",
    "eval_steps": "eval_interval",
}

# The same for keys inside a group, where a group has the key that is meant.
RENAMED_INSIDE: dict[str, str] = {
    "epsilon": "eps",
    "adam_epsilon": "eps",
    "adam_eps": "eps",
    "beta1": "betas",
    "beta2": "betas",
    "adam_beta1": "betas",
    "adam_beta2": "betas",
    "adam_betas": "betas",
    "wd": "weight_decay",
}
