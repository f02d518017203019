"""The model's shape and its variants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from megatron.neox_arguments.rules.rule import Finding, Rules
from megatron.neox_arguments.sections.attention import ATTENTION_KINDS, expand_attention_config
from megatron.neox_arguments.sections.norms import NORMS_WITH_WEIGHTS
from megatron.neox_arguments.sections.positions import ALL_SCALING_KEYS

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

RULES = Rules()

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


@RULES.about("hidden_size", "num_attention_heads", "head_dim")
def _heads_fit(args: NeoXArgs) -> Iterator[Finding]:
    if not args.model.heads_are_whole:
        yield (
            "hidden_size",
            f"{args.model.hidden_size} is no multiple of num_attention_heads "
            f"{args.model.num_attention_heads}: each head needs a whole width (or give head_dim)",
        )


@RULES.about("num_attention_heads", "num_kv_heads")
def _kv_heads_fit(args: NeoXArgs) -> Iterator[Finding]:
    heads, kv_heads = args.model.num_attention_heads, args.model.kv_heads
    if heads % kv_heads:
        yield (
            "num_kv_heads",
            f"num_attention_heads {heads} is no multiple of {kv_heads}: "
            "each key-value head serves a whole number of query heads",
        )


@RULES.about("seq_length", "max_position_embeddings")
def _positions_suffice(args: NeoXArgs) -> Iterator[Finding]:
    length, positions = args.model.seq_length, args.model.max_position_embeddings
    if length > positions:
        yield (
            "max_position_embeddings",
            f"{positions} is less than seq_length {length}: positions beyond it have no meaning",
        )


@RULES.about("pos_emb", "rotary_pct", "hidden_size", "num_attention_heads", "head_dim")
def _rotary_is_even(args: NeoXArgs) -> Iterator[Finding]:
    model = args.model
    if model.pos_emb != "rotary" or not model.heads_are_whole:
        return
    if model.rotary_dim < 2 or model.rotary_dim % 2:
        yield (
            "rotary_pct",
            f"{model.rotary_pct:g} of the {model.head_width} dimensions per head (head_dim, or hidden_size / "
            f"num_attention_heads) is {model.rotary_dim}; rotations need an even number from 2 on",
        )


@RULES.about("intermediate_size", "expansion_factor", "hidden_size")
def _one_mlp_width(args: NeoXArgs) -> Iterator[Finding]:
    model = args.model
    if model.intermediate_size is None or model.expansion_factor is None:
        return
    if model.intermediate_size != int(model.expansion_factor * model.hidden_size):
        yield (
            "intermediate_size",
            f"{model.intermediate_size} is not expansion_factor {model.expansion_factor:g} x hidden_size "
            f"{model.hidden_size}: give one of the two",
        )


@RULES.about("intermediate_size", "expansion_factor", "hidden_size", "activation")
def _the_mlp_has_a_width(args: NeoXArgs) -> Iterator[Finding]:
    model = args.model
    if model.mlp_width == 0:
        key = "expansion_factor" if model.intermediate_size is None else "intermediate_size"
        yield (
            key,
            f"leaves nothing of the MLP's width, which is {model.asked_mlp_width} before "
            f"activation: {model.activation} takes its share: give a larger one",
        )


@RULES.about("attention_config", "sliding_window_width")
def _windows_have_a_width(args: NeoXArgs) -> Iterator[Finding]:
    config = args.model.attention_config
    if args.model.sliding_window_width is None and config and "local" in str(config):
        yield "attention_config", "local layers see a window: give sliding_window_width, in tokens"


@RULES.about("gpt_j_tied", "gpt_j_residual")
def _one_norm_needs_one_input(args: NeoXArgs) -> Iterator[Finding]:
    if args.model.gpt_j_tied and not args.model.gpt_j_residual:
        yield (
            "gpt_j_tied",
            "attention and MLP can share a norm where they have the same input: set gpt_j_residual: true",
        )


@RULES.about("pos_emb", "opt_pos_emb_offset", "hidden_size")
def _tables_of_positions_fit(args: NeoXArgs) -> Iterator[Finding]:
    model = args.model
    if model.opt_pos_emb_offset and model.pos_emb != "learned":
        yield "opt_pos_emb_offset", f"has a meaning with pos_emb: learned, found {model.pos_emb}"
    if model.pos_emb == "sinusoidal" and model.hidden_size % 2:
        yield (
            "hidden_size",
            f"{model.hidden_size} is odd: pos_emb: sinusoidal has a sine and a cosine each",
        )


@RULES.about("pos_emb", "rpe_num_buckets", "rpe_max_distance", "pipe_parallel_size")
def _distances_have_buckets(args: NeoXArgs) -> Iterator[Finding]:
    model, stages = args.model, args.parallelism.pipe_parallel_size
    if model.pos_emb != "rpe":
        return
    if model.rpe_num_buckets < 2:
        yield "rpe_num_buckets", f"{model.rpe_num_buckets} tells no distances apart: give 2 or more"
    elif model.rpe_max_distance <= model.rpe_num_buckets // 2:
        yield (
            "rpe_max_distance",
            f"{model.rpe_max_distance} is within the first {model.rpe_num_buckets // 2} distances (half of "
            "rpe_num_buckets), which have a bucket each: give a larger one, or fewer buckets",
        )
    if stages > 1:
        yield (
            "pos_emb",
            f"rpe has one table for all layers, and the {stages} stages of a pipeline (pipe_parallel_size) "
            "hold different layers: use pipe_parallel_size: 0 or 1, or rotary or alibi",
        )


@RULES.about("pos_emb", "rotary_scaling", "rotary_emb_base", *ALL_SCALING_KEYS)
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
    if kind == "yarn" and model.rotary_emb_base == 1:
        yield (
            "rotary_emb_base",
            "is 1: all pairs turn alike, and rotary_scaling: yarn tells them apart",
        )
    if kind == "yarn" and model.rotary_beta_fast <= model.rotary_beta_slow:
        yield (
            "rotary_beta_fast",
            f"{model.rotary_beta_fast:g} is not above rotary_beta_slow {model.rotary_beta_slow:g}: what "
            "turns often is kept, what turns seldom is divided",
        )


@RULES.about("norm_weight_offset", "norm")
def _an_offset_needs_weights(args: NeoXArgs) -> Iterator[Finding]:
    if args.model.norm_weight_offset and args.model.norm not in NORMS_WITH_WEIGHTS:
        yield (
            "norm_weight_offset",
            f"is added to a norm's weights, which norm: {args.model.norm} does not have: take it out",
        )


@RULES.about("gelu_form", "activation")
def _a_form_needs_gelu(args: NeoXArgs) -> Iterator[Finding]:
    if args.model.gelu_form is not None and args.model.activation not in ("gelu", "geglu"):
        yield (
            "gelu_form",
            f"has a meaning with activation: gelu and geglu, found {args.model.activation}: take it out",
        )


@RULES.about("qk_norm", "use_qk_layernorm", "norm", "num_attention_heads", "num_kv_heads")
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


@RULES.about("qk_norm", "use_qk_layernorm", "context_parallel_size")
def _all_heads_are_here(args: NeoXArgs) -> Iterator[Finding]:
    if args.model.qk_norm_kind == "neox" and args.parallelism.context_parallel_size > 1:
        yield (
            "context_parallel_size",
            "each rank attends with some heads, and one norm over all heads (qk_norm: neox) needs them "
            "all: use qk_norm: head, or model_parallel_size",
        )


@RULES.about("attention_config", "num_layers")
def _attention_is_known(args: NeoXArgs) -> Iterator[Finding]:
    if args.model.attention_config is None:
        return
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
