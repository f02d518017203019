"""Keys that GPT-NeoX knows and this project does not act on: named as ignored, or refused.

Every key of GPT-NeoX is a field of a section (it *works*) or stands here, once. An *ignored* key
changes nothing in what is learned, or belongs to something that is refused anyway; it is named once
at the start unless its value is the "off" one. A *refused* key asks for a feature that is not here;
its "off" values are accepted in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OtherKey:
    """A key that is known but not acted on.

    Attributes:
        why: the reason it is ignored, or what to do instead of what is refused.
        off: the values that ask for nothing; a group with `enabled: false` is another.
        refused: whether any other value stops the run.
    """

    why: str
    off: tuple[Any, ...]
    refused: bool = False


def _ignored(why: str, *off: Any, keys: str) -> dict[str, OtherKey]:
    return {key: OtherKey(why, (None, *off)) for key in keys.split()}


def _refused(why: str, *off: Any, keys: str) -> dict[str, OtherKey]:
    return {key: OtherKey(why, (None, *off), refused=True) for key in keys.split()}


def _companions(of: str, keys: str) -> dict[str, OtherKey]:
    return {key: OtherKey(f"has a meaning with {of} only", (None,)) for key in keys.split()}


IGNORED: dict[str, OtherKey] = {
    **_ignored(
        "kernels are PyTorch's own here, whatever is fused",
        False,
        keys="scaled_upper_triang_masked_softmax_fusion scaled_masked_softmax_fusion bias_dropout_fusion "
        "rope_fusion layernorm_fusion rmsnorm_fusion use_flashattn_swiglu fused_kernels_build_path",
    ),
    **_ignored(
        "layers are PyTorch's own here, not Transformer Engine's",
        False,
        keys="te_columnparallel te_rowparallel te_layernorm_mlp te_mha te_fp8_mha",
    ),
    **_companions(
        "Transformer Engine",
        "te_fp8_format te_fp8_wgrad te_fp8_amax_history_len te_fp8_amax_compute_algo te_fp8_margin",
    ),
    **_ignored("softmax is always computed in fp32", False, True, keys="attention_softmax_in_fp32"),
    **_ignored("the loss is always computed in fp32", False, keys="fp16_lm_cross_entropy"),
    **_ignored(
        "it guards fp16 softmax against overflow; scores here need no such guard",
        False,
        keys="apply_query_key_layer_scaling",
    ),
    **_ignored(
        "weights are drawn the same way on every device", False, keys="use_cpu_initialization"
    ),
    **_ignored(
        "rotary frequencies are computed, not stored", False, keys="rotary_save_freqs_buffer"
    ),
    **_ignored(
        "activations are recomputed by PyTorch, which has no such option",
        False,
        keys="partition_activations synchronize_each_layer contiguous_checkpointing checkpoint_in_cpu "
        "profile_backward",
    ),
    **_ignored(
        "activations are recomputed by PyTorch", True, keys="deepspeed_activation_checkpointing"
    ),
    **_ignored(
        "nothing is split along the sequence while model_parallel_size is 1",
        False,
        keys="sequence_parallel",
    ),
    **_ignored(
        "metrics go to metrics.jsonl and TensorBoard for now",
        False,
        keys="use_wandb wandb_group wandb_run_name wandb_team wandb_project wandb_host wandb_init_all_ranks "
        "use_comet comet_workspace comet_project comet_experiment_name comet_tags comet_others "
        "comet_experiment",
    ),
    **_ignored(
        "this diagnostic is not written yet",
        False,
        keys="log_grad_pct_zeros log_param_norm log_optimizer_states log_gradient_noise_scale "
        "peak_theoretical_tflops",
    ),
    **_companions(
        "log_gradient_noise_scale",
        "gradient_noise_scale_n_batches gradient_noise_scale_cpu_offload",
    ),
    **_ignored("the norm of the gradient is always logged", False, True, keys="log_grad_norm"),
    **_ignored("eval.py reports bits per byte", False, keys="char_level_ppl"),
    **_ignored(
        "GPT-NeoX itself makes no use of it",
        False,
        keys="lazy_mpu_init onnx_safe short_seq_prob deepscale deepscale_config",
    ),
    **_ignored("the launcher knows it", keys="user_script global_num_gpus"),
    **_ignored("a checkpoint keeps the files themselves", keys="config_files"),
    **_ignored("starts are on one host for now", False, keys="no_ssh_check comment account"),
    **_companions("fp16", "hysteresis dynamic_loss_scale loss_scale loss_scale_window min_scale"),
    **_companions("adlr_autoresume", "adlr_autoresume_interval"),
    **_companions("curriculum_learning", "curriculum_seqlen"),
    **_companions("profile", "profile_step_start profile_step_stop"),
    **_companions("memory_profiling", "memory_profiling_path"),
    **_companions("s3_path", "s3_chunk_size"),
    **_companions("eval_tasks", "eval_results_prefix"),
    **_companions("pos_emb: rpe", "rpe_num_buckets rpe_max_distance"),
    **_companions("norm: scalenorm", "scalenorm_epsilon"),
    **_companions("num_unique_layers", "param_sharing_style"),
    **_companions("serve_model_weights", "weight_server_port"),
    **_companions("dataset_impl: online", "online_dataserver_ips online_dataserver_ports"),
    **_companions(
        "train_impl: dpo, kto or reinforce",
        "dpo_fp32 dpo_reference_free dpo_beta kto_fp32 kto_desirable_weight kto_undesirable_weight "
        "kto_beta fp32_reinforce kl_impl kl_div_beta reinforce_leave_one_out",
    ),
    **_companions(
        "use_mup",
        "mup_init_scale mup_attn_temp mup_output_temp mup_embedding_mult mup_rp_embedding_mult "
        "mup_width_scale base_shapes_file",
    ),
    **_companions(
        "moe_num_experts",
        "moe_expert_interval moe_top_k moe_router_type moe_lbl_in_fp32 moe_jitter_eps",
    ),
    **_companions("attention_config: gmlp", "gmlp_attn_dim"),
    **_companions("attention_config: rwkv", "dim_att head_size ffn_dim"),
    **_companions(
        "attention_config: mamba",
        "mamba_selective_scan_fusion mamba_causal_conv_fusion mamba_inner_func_fusion "
        "mamba_selective_fp32_params mamba_use_bias_in_conv mamba_use_bias_in_linears",
    ),
}

REFUSED: dict[str, OtherKey] = {
    **_refused(
        "DeepSpeed 0.19 no longer has it: gradients of embeddings are exchanged whole",
        False,
        keys="sparse_gradients",
    ),
    **_refused(
        "DeepSpeed no longer has it: take it out",
        {},
        keys="amp compression_training sparse_attention",
    ),
    **_refused("the batch keys set the batch: take it out", {}, keys="elasticity"),
    **_refused("sequence lengths are fixed: take it out", {}, keys="curriculum_learning"),
    **_refused(
        "not supported yet: take it out",
        [],
        keys=" ".join(
            f"{kind}{split}{what}_data_paths"
            for split in ("train", "valid", "test")
            for kind, what in (
                ("", "_label"),
                ("", "_reward"),
                ("pos_", ""),
                ("neg_", ""),
                ("pos_", "_label"),
                ("neg_", "_label"),
            )
        ),
    ),
    **_refused("only gpt2 for now", "gpt2", keys="dataset_impl"),
    **_refused("only normal (next-token) training for now", "normal", keys="train_impl"),
    **_refused("not supported yet: take it out", 0, 0.0, keys="z_loss opt_pos_emb_offset"),
    **_refused("only column", "column", keys="output_layer_parallelism"),
    **_refused(
        "not supported yet: take it out",
        False,
        {},
        [],
        "",
        keys="sliding_window_width sparsity_config num_unique_layers use_qk_layernorm soft_prompt_tuning "
        "gpt_j_tied serve_model_weights use_bnb_optimizer use_mup coord_check save_base_shapes "
        "adlr_autoresume autotuning_run s3_path precompute_model_name profile memory_profiling",
    ),
    **_refused(
        "not supported yet: a checkpoint's manifest is checked at load instead",
        False,
        keys="checkpoint_validation_with_forward_pass",
    ),
    **_refused("experts are not supported yet: take it out", 0, 1, keys="moe_num_experts"),
}

# Values that are known only at run time. One written in a file is checked then, not obeyed.
RUNTIME: dict[str, str] = {
    "rank": "Global rank of a process.",
    "local_rank": "Rank of a process on its host.",
    "world_size": "Number of processes of the run.",
    "padded_vocab_size": "Rows of the word embedding.",
    "is_pipe_parallel": "Whether `pipe_parallel_size` is above 0.",
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
