"""What must hold between fields: each rule with its reason and its remedy.

A rule names the keys that it looks at; where one of them has a problem of its own, the rule stays
silent. A rule says what is wrong as ``(key, text)`` pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from megatron.neox_arguments.batch_sizes import (
    BATCH_KEYS,
    BatchMismatch,
    data_parallel_size,
    solve_batch,
)
from megatron.neox_arguments.merging import Merged
from megatron.neox_arguments.nested_keys import NOT_DEEPSPEEDS
from megatron.neox_arguments.pipe_partition import PartitionError, stage_layers
from megatron.neox_arguments.problems import Problems, shown
from megatron.neox_arguments.registry import KNOWN_KEYS, meant_key
from megatron.neox_arguments.sections.attention import ATTENTION_KINDS, expand_attention_config
from megatron.neox_arguments.sections.norms import NORMS_WITH_WEIGHTS
from megatron.neox_arguments.zero_rules import (
    offloading_is_here,
    zero_options_are_here,
    zero_stage_is_here,
)

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

Finding = tuple[str, str]
Rule = Callable[["NeoXArgs"], Iterator[Finding]]
_RULES: list[tuple[tuple[str, ...], Rule]] = []

REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
# Kinds of attention that GPT-NeoX has beside ATTENTION_KINDS.
_KINDS_NOT_YET = frozenset(
    {
        "sparse_fixed",
        "sparse_variable",
        "bigbird",
        "bslongformer",
        "gmlp",
        "amlp",
        "mamba",
        "rwkv",
    }
)


def _rule(*keys: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.append((keys, rule))
        return rule

    return register


def check_rules(
    args: NeoXArgs, merged: Merged, problems: Problems, world_size: int | None
) -> list[str]:
    """Check every rule; returns the lines that a run should say once."""
    bad = problems.bad_keys()
    accounted_for = bad | {meant_key(key) for key in bad if key not in KNOWN_KEYS}
    missing = [key for key in REQUIRED if getattr(args, key) is None and key not in accounted_for]
    if missing and not merged.is_a_part:
        problems.add(", ".join(missing), "missing: every configuration needs them")
    for keys, rule in _RULES:
        needs_shape = any(key in REQUIRED for key in keys)
        if bad.intersection(keys) or (
            needs_shape and any(getattr(args, key) is None for key in REQUIRED)
        ):
            continue
        for key, text in rule(args):
            problems.add(key, text, merged.place(tuple(key.split("."))))
    if world_size is not None:
        _check_world(args, merged, problems, world_size)
    return list(_notes(args))


def _check_world(args: NeoXArgs, merged: Merged, problems: Problems, world_size: int) -> None:
    wanted = args.expected.get("world_size")
    if wanted is not None and wanted != world_size:
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        place = merged.place(("world_size",))
        problems.add("world_size", f"the file says {shown(wanted)}, this run has {ranks}", place)
        return  # whatever else does not fit this world may fit the one that is meant
    if not problems.bad_keys().intersection(BATCH_KEYS):
        try:
            solve_batch(args.batch, data_parallel_size(args.parallelism, world_size))
        except BatchMismatch as mismatch:
            problems.add(mismatch.key, str(mismatch), merged.place((mismatch.key,)))
    for key in ("rank", "local_rank"):
        rank = args.expected.get(key)
        if rank is not None and not (isinstance(rank, int) and 0 <= rank < world_size):
            text = f"found {shown(rank)}, but the ranks of this run are 0 to {world_size - 1}"
            problems.add(key, text, merged.place((key,)))


# The model's shape.


@_rule("hidden_size", "num_attention_heads", "head_dim")
def _heads_fit(args: NeoXArgs) -> Iterator[Finding]:
    hidden, heads = args.model.hidden_size, args.model.num_attention_heads
    assert hidden
    assert heads
    if args.model.head_dim is None and hidden % heads:
        yield (
            "hidden_size",
            f"{hidden} is no multiple of num_attention_heads {heads}: each head needs a whole width "
            "(or give head_dim)",
        )


@_rule("num_attention_heads", "num_kv_heads")
def _kv_heads_fit(args: NeoXArgs) -> Iterator[Finding]:
    heads, kv_heads = args.model.num_attention_heads, args.model.kv_heads
    assert heads
    if heads % kv_heads:
        yield (
            "num_kv_heads",
            f"num_attention_heads {heads} is no multiple of {kv_heads}: "
            "each key-value head serves a whole number of query heads",
        )


@_rule("seq_length", "max_position_embeddings")
def _positions_suffice(args: NeoXArgs) -> Iterator[Finding]:
    length, positions = args.model.seq_length, args.model.max_position_embeddings
    assert length
    assert positions
    if length > positions:
        yield (
            "max_position_embeddings",
            f"{positions} is less than seq_length {length}: positions beyond it have no meaning",
        )


@_rule("pos_emb", "rotary_pct", "hidden_size", "num_attention_heads", "head_dim")
def _rotary_is_even(args: NeoXArgs) -> Iterator[Finding]:
    model = args.model
    assert model.hidden_size
    assert model.num_attention_heads
    whole = model.head_dim or model.hidden_size % model.num_attention_heads == 0
    if model.pos_emb != "rotary" or not whole:
        return
    if model.rotary_dim < 2 or model.rotary_dim % 2:
        yield (
            "rotary_pct",
            f"{model.rotary_pct:g} of the {model.head_width} dimensions per head (head_dim, or hidden_size / "
            f"num_attention_heads) is {model.rotary_dim}; rotations need an even number from 2 on",
        )


@_rule("intermediate_size", "expansion_factor", "hidden_size")
def _one_mlp_width(args: NeoXArgs) -> Iterator[Finding]:
    model = args.model
    if model.intermediate_size is None or model.expansion_factor is None:
        return
    assert model.hidden_size
    if model.intermediate_size != int(model.expansion_factor * model.hidden_size):
        yield (
            "intermediate_size",
            f"{model.intermediate_size} is not expansion_factor {model.expansion_factor:g} x hidden_size "
            f"{model.hidden_size}: give one of the two",
        )


@_rule("attention_config", "sliding_window_width")
def _windows_have_a_width(args: NeoXArgs) -> Iterator[Finding]:
    config = args.model.attention_config
    if args.model.sliding_window_width is None and config and "local" in str(config):
        yield "attention_config", "local layers see a window: give sliding_window_width, in tokens"


@_rule("gpt_j_tied", "gpt_j_residual")
def _one_norm_needs_one_input(args: NeoXArgs) -> Iterator[Finding]:
    if args.model.gpt_j_tied and not args.model.gpt_j_residual:
        yield (
            "gpt_j_tied",
            "attention and MLP can share a norm where they have the same input: set gpt_j_residual: true",
        )


@_rule("pos_emb", "opt_pos_emb_offset", "hidden_size")
def _tables_of_positions_fit(args: NeoXArgs) -> Iterator[Finding]:
    model = args.model
    if model.opt_pos_emb_offset and model.pos_emb != "learned":
        yield "opt_pos_emb_offset", f"has a meaning with pos_emb: learned, found {model.pos_emb}"
    if model.pos_emb == "sinusoidal" and model.hidden_size % 2:
        yield (
            "hidden_size",
            f"{model.hidden_size} is odd: pos_emb: sinusoidal has a sine and a cosine each",
        )


@_rule("pos_emb", "rotary_scaling", "rotary_scaling_factor", "rotary_original_positions")
def _rotations_can_be_scaled(args: NeoXArgs) -> Iterator[Finding]:
    model, kind = args.model, args.model.rotary_scaling
    if kind == "none":
        return
    if model.pos_emb != "rotary":
        yield (
            "rotary_scaling",
            f"has a meaning with pos_emb: rotary, found {model.pos_emb}: take it out",
        )
    if model.rotary_scaling_factor < 1:
        yield (
            "rotary_scaling_factor",
            f"{model.rotary_scaling_factor:g} is below 1: texts get longer",
        )
    if kind != "linear" and model.rotary_original_positions is None:
        yield "rotary_original_positions", f"missing: rotary_scaling: {kind} follows from it"
    if kind == "llama3" and model.rotary_low_freq_factor >= model.rotary_high_freq_factor:
        yield (
            "rotary_low_freq_factor",
            f"{model.rotary_low_freq_factor:g} is not below rotary_high_freq_factor "
            f"{model.rotary_high_freq_factor:g}",
        )


@_rule("norm_weight_offset", "norm")
def _an_offset_needs_weights(args: NeoXArgs) -> Iterator[Finding]:
    if args.model.norm_weight_offset and args.model.norm not in NORMS_WITH_WEIGHTS:
        yield (
            "norm_weight_offset",
            f"is added to a norm's weights, which norm: {args.model.norm} does not have: take it out",
        )


@_rule("gelu_form", "activation")
def _a_form_needs_gelu(args: NeoXArgs) -> Iterator[Finding]:
    if args.model.gelu_form is not None and args.model.activation not in ("gelu", "geglu"):
        yield (
            "gelu_form",
            f"has a meaning with activation: gelu and geglu, found {args.model.activation}: take it out",
        )


@_rule("qk_norm", "use_qk_layernorm", "norm", "num_attention_heads", "num_kv_heads")
def _queries_and_keys_can_be_normalised(args: NeoXArgs) -> Iterator[Finding]:
    model = args.model
    key = "use_qk_layernorm" if model.use_qk_layernorm else "qk_norm"
    if model.use_qk_layernorm and model.qk_norm == "head":
        yield "qk_norm", "is head, but use_qk_layernorm: true means neox: keep one of the two"
    elif model.qk_norm_kind == "neox" and model.norm != "layernorm":
        yield (
            key,
            f"one norm over all heads (neox) is a layernorm, norm is {model.norm}: use qk_norm: head",
        )
    elif model.qk_norm_kind == "neox" and model.kv_heads != model.num_attention_heads:
        yield (
            key,
            f"one norm over all heads (neox) needs as many key heads as query heads, num_kv_heads is "
            f"{model.kv_heads} of {model.num_attention_heads}: use qk_norm: head",
        )
    elif model.qk_norm_kind == "head" and model.norm not in NORMS_WITH_WEIGHTS:
        yield (
            key,
            f"a norm of each head has weights, norm: {model.norm} has none of that form: use layernorm or "
            "rmsnorm, or qk_norm: none",
        )


@_rule("qk_norm", "use_qk_layernorm", "context_parallel_size")
def _all_heads_are_here(args: NeoXArgs) -> Iterator[Finding]:
    if args.model.qk_norm_kind == "neox" and args.parallelism.context_parallel_size > 1:
        yield (
            "context_parallel_size",
            "each rank attends with some heads, and one norm over all heads (qk_norm: neox) needs them "
            "all: use qk_norm: head, or model_parallel_size",
        )


@_rule("attention_config", "num_layers")
def _attention_is_known(args: NeoXArgs) -> Iterator[Finding]:
    if args.model.attention_config is None:
        return
    assert args.model.num_layers
    try:
        kinds = expand_attention_config(args.model.attention_config, args.model.num_layers)
    except ValueError as error:
        yield "attention_config", str(error)
        return
    for kind in dict.fromkeys(kinds):
        if kind in _KINDS_NOT_YET:
            yield (
                "attention_config",
                f"{kind} is not supported yet; choose of {', '.join(sorted(ATTENTION_KINDS))}",
            )
        elif kind not in ATTENTION_KINDS:
            yield (
                "attention_config",
                f"{kind} is no kind of attention; choose of {', '.join(sorted(ATTENTION_KINDS))}",
            )


# Layout and optimizer.


@_rule("pipe_parallel_size")
def _layout_is_here(args: NeoXArgs) -> Iterator[Finding]:
    pipe = args.parallelism.pipe_parallel_size
    expected = args.expected.get("is_pipe_parallel")
    if expected is not None and expected != (pipe > 0):
        yield (
            "is_pipe_parallel",
            f"is {shown(expected)}, but pipe_parallel_size is {pipe}: take it out",
        )


@_rule("pipe_parallel_size", "pipe_partition_method", *REQUIRED)
def _every_stage_has_layers(args: NeoXArgs) -> Iterator[Finding]:
    parallelism = args.parallelism
    if (
        parallelism.pipe_parallel_size == 0
        or args.model.hidden_size % args.model.num_attention_heads
    ):
        return
    rows = args.expected.get("padded_vocab_size") or 0
    try:
        stage_layers(
            args.model, parallelism.pipe_parallel_size, parallelism.pipe_partition_method, int(rows)
        )
    except PartitionError as error:
        yield error.key, str(error)


@_rule("pipe_parallel_size", "use_node_local_storage", "checkpoint")
def _stages_save_on_one_disk(args: NeoXArgs) -> Iterator[Finding]:
    if args.parallelism.pipe_parallel_size > 0 and args.checkpointing.use_node_local_storage:
        yield (
            "use_node_local_storage",
            "is true, but each stage of a pipeline writes its part once, where all must find it: save on a "
            "file system that all nodes share, or use pipe_parallel_size: 0",
        )


@_rule("deepspeed_extra_args", "sequence_parallel", "model_parallel_size")
def _stages_exchange_what_they_have(args: NeoXArgs) -> Iterator[Finding]:
    if not (args.parallelism.sequence_parallel and args.parallelism.model_parallel_size > 1):
        return
    for key, value in ((args.ds_extras.deepspeed_extra_args or {}).get("pipeline") or {}).items():
        if value:
            yield (
                f"deepspeed_extra_args.pipeline.{key}",
                "splits among tensor-parallel ranks what sequence_parallel has split already: take it out",
            )


@_rule("model_parallel_size", "num_attention_heads", "hidden_size")
def _tensor_parallel_ranks_share_evenly(args: NeoXArgs) -> Iterator[Finding]:
    model, ranks = args.model, args.parallelism.model_parallel_size
    assert model.num_attention_heads
    assert model.hidden_size
    if model.head_dim is None and model.hidden_size % model.num_attention_heads:
        return  # _heads_fit says so
    for key, size, what in (
        ("num_attention_heads", model.num_attention_heads, "the attention heads"),
        ("intermediate_size", model.mlp_width, "the MLP's width"),
    ):
        if size % ranks:
            yield (
                "model_parallel_size",
                f"{ranks} ranks cannot share {what} evenly: {size} is no multiple (see {key})",
            )


@_rule("model_parallel_size", "num_attention_heads", "num_kv_heads")
def _key_value_heads_are_shared_evenly(args: NeoXArgs) -> Iterator[Finding]:
    heads, ranks = args.model.kv_heads, args.parallelism.model_parallel_size
    grouped = heads != args.model.num_attention_heads
    if grouped and heads % ranks and ranks % heads:
        yield (
            "model_parallel_size",
            f"{ranks} ranks cannot share num_kv_heads {heads} evenly: one must be a multiple of the "
            "other (with fewer heads than ranks, neighbours hold the same one)",
        )


@_rule(
    "context_parallel_size",
    "model_parallel_size",
    "hidden_size",
    "num_attention_heads",
    "num_kv_heads",
)
def _context_parallel_ranks_share_heads(args: NeoXArgs) -> Iterator[Finding]:
    context, ranks = args.parallelism.context_parallel_size, args.parallelism.model_parallel_size
    heads, kv_heads = args.model.num_attention_heads, args.model.kv_heads
    assert heads
    if heads % ranks:
        return  # _tensor_parallel_ranks_share_evenly says so
    on_rank, shared = heads // ranks, max(1, kv_heads // ranks)
    if on_rank % context:
        yield (
            "context_parallel_size",
            f"{context} ranks cannot share {on_rank} attention heads evenly (num_attention_heads {heads} / "
            f"model_parallel_size {ranks}), of which each attends with some: use a divisor of {on_rank}",
        )
    elif shared % context and context % shared:
        yield (
            "context_parallel_size",
            f"{context} ranks cannot share {shared} key/value heads evenly (num_kv_heads {kv_heads} / "
            f"model_parallel_size {ranks}): one must be a multiple of the other",
        )


@_rule("context_parallel_size", "pipe_parallel_size")
def _context_parallelism_is_plain(args: NeoXArgs) -> Iterator[Finding]:
    context, pipe = args.parallelism.context_parallel_size, args.parallelism.pipe_parallel_size
    if context > 1 and pipe > 0:
        yield (
            "context_parallel_size",
            f"{context} ranks cannot share sequences in a pipeline yet (pipe_parallel_size is {pipe}): use "
            "pipe_parallel_size: 0, and model_parallel_size or ZeRO for weights that one device does not "
            "hold",
        )


@_rule("context_parallel_size", "sequence_parallel", "model_parallel_size", "seq_length")
def _tokens_are_shared_evenly(args: NeoXArgs) -> Iterator[Finding]:
    context, ranks = args.parallelism.context_parallel_size, args.parallelism.model_parallel_size
    length, sequence = args.model.seq_length, args.parallelism.sequence_parallel
    assert length
    if context > 1 and length % (parts := context * (ranks if sequence else 1)):
        share = f"{parts} ranks (with sequence_parallel, times model_parallel_size {ranks})"
        yield (
            "context_parallel_size",
            f"{share if sequence else f'{context} ranks'} cannot share seq_length {length} evenly: it must "
            f"be a multiple of {parts}",
        )
    elif sequence and length % ranks:
        yield (
            "sequence_parallel",
            f"{ranks} ranks (model_parallel_size) cannot share seq_length {length} evenly: it must be a "
            "multiple",
        )


_rule("zero_optimization", "zero_stage", "pipe_parallel_size")(zero_stage_is_here)
_rule("zero_optimization", "optimizer", "zero_force_ds_cpu_optimizer")(offloading_is_here)
_rule("zero_optimization", "prescale_gradients", "gradient_predivide_factor")(zero_options_are_here)


@_rule("lr", "min_lr", "lr_decay_style")
def _lr_goes_down(args: NeoXArgs) -> Iterator[Finding]:
    low, high = args.lr_schedule.min_lr, args.optim.lr
    if low > high:
        yield "min_lr", f"{low:g} is above the learning rate {high:g} (optimizer.params.lr)"


@_rule("lr_decay_iters", "lr_decay_fraction")
def _one_decay_length(args: NeoXArgs) -> Iterator[Finding]:
    schedule = args.lr_schedule
    if schedule.lr_decay_iters is not None and schedule.lr_decay_fraction is not None:
        yield "lr_decay_fraction", "lr_decay_iters is given too: keep one"


@_rule("override_lr_scheduler", "use_checkpoint_lr_scheduler")
def _one_schedule(args: NeoXArgs) -> Iterator[Finding]:
    if args.lr_schedule.override_lr_scheduler and args.lr_schedule.use_checkpoint_lr_scheduler:
        yield (
            "override_lr_scheduler",
            "use_checkpoint_lr_scheduler is true too, which says the opposite: keep one",
        )


@_rule("train_iters", "train_epochs")
def _one_length(args: NeoXArgs) -> Iterator[Finding]:
    if args.training.train_iters is not None and args.training.train_epochs is not None:
        yield "train_epochs", "train_iters is given too: keep one"


# Data, checkpoints, text.


@_rule("split")
def _split_is_shares(args: NeoXArgs) -> Iterator[Finding]:
    parts = args.data.split.replace("/", ",").split(",")
    try:
        shares = [float(part) for part in parts]
    except ValueError:
        shares = []
    if (
        not 1 <= len(shares) <= 3
        or not all(0 <= share < float("inf") for share in shares)
        or sum(shares) <= 0
    ):
        yield "split", f"found {shown(args.data.split)}, expected three shares such as 969, 30, 1"


_BLENDS = ("train", "valid", "test")
_BLEND_PATHS = tuple(f"{split}_data_paths" for split in _BLENDS)
_BLEND_LABELS = tuple(f"{split}_label_data_paths" for split in _BLENDS)
_BLEND_WEIGHTS = tuple(f"{split}_data_weights" for split in _BLENDS)
_MOST_DATASETS = 1000


@_rule("data_path", *_BLEND_PATHS, *_BLEND_LABELS)
def _data_paths_are_prefixes(args: NeoXArgs) -> Iterator[Finding]:
    given = {"data_path": [args.data.data_path] if args.data.data_path else []}
    given |= {key: list(getattr(args.data, key) or ()) for key in (*_BLEND_PATHS, *_BLEND_LABELS)}
    for key, paths in given.items():
        for path in paths:
            for ending in (".bin", ".idx"):
                if path.endswith(ending):
                    yield key, f"{path} names one file of a pair: take {ending} off"
        for path in {path for path in paths if paths.count(path) > 1}:
            yield key, f"{path} is in it twice: name it once and give it the weight of both"
        if len(paths) > _MOST_DATASETS:
            yield key, f"{len(paths):,} datasets, the most are {_MOST_DATASETS:,}: merge some"


@_rule("data_path", *_BLEND_PATHS, *_BLEND_LABELS, *_BLEND_WEIGHTS, "weight_by_num_documents")
def _blends_are_whole(args: NeoXArgs) -> Iterator[Finding]:
    data = args.data
    blends = [key for key in _BLEND_PATHS if getattr(data, key)]
    if data.data_path and blends:
        yield blends[0], "data_path is given too, which would be split: keep one of the two ways"
    for paths_key, weights_key in zip(_BLEND_PATHS, _BLEND_WEIGHTS, strict=True):
        paths, weights = getattr(data, paths_key) or (), getattr(data, weights_key)
        if weights and len(weights) != len(paths):
            yield (
                weights_key,
                f"{len(weights):,} weights for {len(paths):,} {paths_key}: one is needed for each",
            )
    for paths_key, labels_key in zip(_BLEND_PATHS, _BLEND_LABELS, strict=True):
        paths, labels = getattr(data, paths_key) or (), getattr(data, labels_key)
        if labels and len(labels) != len(paths):
            yield (
                labels_key,
                f"{len(labels):,} label files for {len(paths):,} {paths_key}: each needs its own",
            )
    if data.weight_by_num_documents and not blends:
        yield "weight_by_num_documents", "weighs the members of *_data_paths, which are not given"


@_rule("reset_position_ids", "pos_emb")
def _positions_are_there(args: NeoXArgs) -> Iterator[Finding]:
    if args.data.reset_position_ids and args.model.pos_emb in ("none", "alibi"):
        yield (
            "reset_position_ids",
            f"pos_emb is {args.model.pos_emb}: there are no positions to reset, take it out",
        )


@_rule("data_local_cache_dir", "data_local_cache_limit_gb")
def _a_limit_needs_a_folder(args: NeoXArgs) -> Iterator[Finding]:
    if args.data.data_local_cache_limit_gb is not None and args.data.data_local_cache_dir is None:
        yield (
            "data_local_cache_limit_gb",
            "limits the copies in data_local_cache_dir, which is not set: set it, or take this out",
        )


@_rule("checkpoint_factor", "checkpoint_scale")
def _checkpoint_factor_fits(args: NeoXArgs) -> Iterator[Finding]:
    factor, scale = args.checkpointing.checkpoint_factor, args.checkpointing.checkpoint_scale
    if factor is None:
        return
    if scale == "linear" and not factor.is_integer():
        yield (
            "checkpoint_factor",
            f"{factor:g} is no whole number of steps (checkpoint_scale: linear)",
        )
    if scale == "log" and factor <= 1:
        yield "checkpoint_factor", f"{factor:g} must be above 1 with checkpoint_scale: log"


@_rule("load", "finetune", "iteration")
def _there_is_something_to_load(args: NeoXArgs) -> Iterator[Finding]:
    settings = args.checkpointing
    if settings.load is not None:
        return
    if settings.finetune:
        yield "finetune", "is true, but there are no weights to start from: load is not given"
    if settings.iteration is not None:
        yield "iteration", f"found {settings.iteration}, but load is not given"


@_rule("reshape_on_load", "use_node_local_storage", "checkpoint")
def _all_parts_are_in_reach(args: NeoXArgs) -> Iterator[Finding]:
    if args.checkpointing.reshape_on_load and args.checkpointing.use_node_local_storage:
        yield (
            "reshape_on_load",
            "reads the parts that all ranks saved, and use_node_local_storage says that each node has only "
            "its own: copy them into one folder that all nodes see, then set that to false",
        )


@_rule("text_gen_type", "sample_input_file")
def _prompts_are_given(args: NeoXArgs) -> Iterator[Finding]:
    if args.textgen.text_gen_type == "input-file" and not args.textgen.sample_input_file:
        yield "sample_input_file", "missing: text_gen_type is input-file"


# DeepSpeed's sections.

# Options of DeepSpeed's own Adam, which torch's Adam stops at.
_DEEPSPEED_ADAM_ONLY = ("bias_correction",)


@_rule("optimizer", "optimizer_type")
def _optimizer_knows_its_options(args: NeoXArgs) -> Iterator[Finding]:
    params = args.optim.params
    if args.optim.name == "sgd" or params.get("torch_adam") is False:
        return
    for key in _DEEPSPEED_ADAM_ONLY:
        if key in params:
            yield (
                f"optimizer.params.{key}",
                "only DeepSpeed's own Adam has it: take it out, or set torch_adam: false, for which "
                "DeepSpeed needs a compiler",
            )


_SWITCHES_NOT_YET = {
    "checkpoint": ("load_universal",),
    "bf16": ("bf16_master_weights_and_grads", "bf16_optimizer_states"),
    "fp16": ("fp16_master_weights_and_grads",),
}


@_rule(*_SWITCHES_NOT_YET)
def _deepspeed_options_are_here(args: NeoXArgs) -> Iterator[Finding]:
    for group, keys in _SWITCHES_NOT_YET.items():
        for key in keys:
            if (getattr(args.ds, group) or {}).get(key):
                instead = ", and set reshape_on_load: true" if key == "load_universal" else ""
                yield f"{group}.{key}", f"is not supported yet: take it out{instead}"


@_rule("bf16", "precision")
def _gradients_are_checked(args: NeoXArgs) -> Iterator[Finding]:
    if args.model.precision != "bfloat16":
        return
    if (args.ds.bf16 or {}).get("check_grad_overflow") is False:
        yield (
            "bf16.check_grad_overflow",
            "is false: gradients that are no numbers would be put into the weights before anyone sees "
            "them: take it out",
        )


# How DeepSpeed names the type of a precision.
_DTYPES = {"fp32": ("fp32",), "bfloat16": ("bf16", "bfp16"), "fp16": ("fp16",)}


@_rule("data_types", "precision")
def _gradients_add_up_in_a_type_that_holds_them(args: NeoXArgs) -> Iterator[Finding]:
    asked = (args.ds.data_types or {}).get("grad_accum_dtype")
    if asked not in (None, "fp32", *_DTYPES[args.model.precision]):
        yield (
            "data_types.grad_accum_dtype",
            f"gradients of a model in {args.model.precision} cannot be added up in {asked}: use fp32, or "
            "take it out",
        )


@_rule("fp16", "loss_scale", "dynamic_loss_scale")
def _the_loss_scale_is_fixed_or_dynamic(args: NeoXArgs) -> Iterator[Finding]:
    scaling = args.loss_scaling
    if scaling.dynamic_loss_scale is None or scaling.dynamic_loss_scale != bool(scaling.loss_scale):
        return
    if scaling.dynamic_loss_scale:
        yield (
            "dynamic_loss_scale",
            f"is true, but loss_scale fixes the factor at {scaling.loss_scale:g}: keep one",
        )
    else:
        yield (
            "dynamic_loss_scale",
            "is false, but loss_scale fixes no factor: give one, or take it out",
        )


# What a run should say once.


# What DeepSpeed does unless it is told otherwise, which GPT-NeoX's files write out.
_LOSS_SCALING = {"loss_scale": 0, "loss_scale_window": 1000, "min_loss_scale": 1, "hysteresis": 2}


def _notes(args: NeoXArgs) -> Iterator[str]:
    model = args.model
    if args.parallelism.sequence_parallel and args.parallelism.model_parallel_size == 1:
        yield "ignored: sequence_parallel (there is one tensor-parallel rank)"
    yield from _notes_on_recomputation(args)
    scaling = args.ds.fp16 or {}
    if model.precision != "fp16" and "enabled" not in scaling:
        asked = [key for key, value in scaling.items() if value != _LOSS_SCALING.get(key)]
        if asked:
            keys = ", ".join(f"fp16.{key}" for key in asked)
            yield f"ignored: {keys} (precision is {model.precision}: only fp16 scales the loss)"
    for group, foreign in NOT_DEEPSPEEDS.items():
        written = [f"{group}.{key}" for key in getattr(args.ds, group) or {} if key in foreign]
        if written:
            yield f"ignored: {', '.join(written)} (DeepSpeed has no such option)"
    if args.data.pack_impl == "packed" and not args.data.allow_chopped:
        yield "ignored: allow_chopped (pack_impl: packed cuts documents wherever a sample ends)"
    if model.bias_gelu_fusion and model.activation != "gelu":
        yield f"ignored: bias_gelu_fusion (activation is {model.activation})"
    elif model.bias_gelu_fusion and model.gelu_form is not None:
        yield f"ignored: bias_gelu_fusion (gelu_form is {model.gelu_form})"


def _notes_on_recomputation(args: NeoXArgs) -> Iterator[str]:
    asked = [
        key
        for key in ("partition_activations", "checkpoint_in_cpu")
        if getattr(args.recomputation, key)
    ]
    if asked and not args.training.checkpoint_activations:
        yield f"ignored: {', '.join(asked)} (checkpoint_activations is false: nothing is recomputed)"
    elif "partition_activations" in asked and args.parallelism.model_parallel_size == 1:
        yield "ignored: partition_activations (there is one tensor-parallel rank)"
    elif "partition_activations" in asked and args.parallelism.sequence_parallel:
        yield "ignored: partition_activations (sequence_parallel has split the activations already)"
