"""The table of families: what each of them calls our tensors and our keys. One more family is one more row.

A row holds no code of its own: names of modules with the kind of :mod:`~megatron.conversion.places` that
they are, and fields of ``config.json`` with what they mean. The defaults are those of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from megatron.conversion.fields import (
    GATED_MLP,
    PLAIN_MLP,
    WHOLE_HEADS,
    Config,
    Field,
    Keys,
    activation,
    always,
    fixed,
    head_dim,
    kv_heads,
    opposite,
    same,
    unread,
    value_of,
)
from megatron.conversion.places import Alike, Gated, Place, Projections
from megatron.conversion.rotary_fields import neox_rotary, rotary
from megatron.conversion.window_fields import one_window, windows_of_some_layers
from megatron.neox_arguments.sections import ModelArgs


@dataclass(frozen=True)
class Family:
    """One family of models in transformers.

    Attributes:
        name: ``model_type`` of its ``config.json``.
        architecture: its causal language model, in ``architectures``.
        places: where each of our modules, by its name inside its layer, is kept.
        fields: of ``config.json``.
        leftovers: tensors, by the end of their names, that old files carry and nobody needs.
        other_names: what some releases call a module, and its name in ``places``.
    """

    name: str
    architecture: str
    places: Mapping[str, Place]
    fields: tuple[Field, ...]
    leftovers: tuple[str, ...] = ("rotary_emb.inv_freq",)
    other_names: Mapping[str, str] = field(default_factory=dict)

    def write(self, model: ModelArgs) -> dict[str, object]:
        """The fields of ``config.json`` that say what ``model`` is.

        Raises:
            Inexpressible: they cannot.
        """
        return {name: value for item in self.fields for name, value in item.write(model).items()}

    def read(self, config: Config) -> Keys:
        """The keys of the model that ``config`` describes.

        Raises:
            Inexpressible: there are none.
        """
        return {key: value for item in self.fields for key, value in item.read(config).items()}

    @property
    def known(self) -> set[str]:
        """The fields of ``config.json`` that the row knows."""
        return {name for item in self.fields for name in item.names}


def _sizes(positions: int) -> tuple[Field, ...]:
    """What all families say in the same words; ``positions`` is the default of the longest text."""
    return (
        same("num_hidden_layers", "num_layers"),
        same("hidden_size"),
        same("num_attention_heads"),
        same("max_position_embeddings", default=positions),
        same("initializer_range", "init_method_std", default=0.02),
        same("attention_dropout", default=0.0),
        unread("use_cache", True),
    )


_RMS = (
    always(norm="rmsnorm", pos_emb="rotary"),
    same("rms_norm_eps", "rms_norm_epsilon", default=1e-6),
    GATED_MLP,
    rotary(),
)

# Where Llama's descendants keep everything.
_LLAMA_LAYER = "model.layers.{}"
_LLAMA: dict[str, Place] = {
    "word_embeddings": Alike("model.embed_tokens"),
    "input_layernorm": Alike(f"{_LLAMA_LAYER}.input_layernorm"),
    "attention.query_key_value": Projections(
        f"{_LLAMA_LAYER}.self_attn.q_proj",
        f"{_LLAMA_LAYER}.self_attn.k_proj",
        f"{_LLAMA_LAYER}.self_attn.v_proj",
    ),
    "attention.dense": Alike(f"{_LLAMA_LAYER}.self_attn.o_proj"),
    "post_attention_layernorm": Alike(f"{_LLAMA_LAYER}.post_attention_layernorm"),
    "mlp.linear1": Gated(f"{_LLAMA_LAYER}.mlp.up_proj", f"{_LLAMA_LAYER}.mlp.gate_proj"),
    "mlp.linear2": Alike(f"{_LLAMA_LAYER}.mlp.down_proj"),
    "norm": Alike("model.norm"),
    "final_linear": Alike("lm_head"),
}
_HEAD_NORMS: dict[str, Place] = {
    "attention.q_norm": Alike(f"{_LLAMA_LAYER}.self_attn.q_norm"),
    "attention.k_norm": Alike(f"{_LLAMA_LAYER}.self_attn.k_norm"),
}

_NEOX_LAYER = "gpt_neox.layers.{}"
_NEOX: dict[str, Place] = {
    "word_embeddings": Alike("gpt_neox.embed_in"),
    "input_layernorm": Alike(f"{_NEOX_LAYER}.input_layernorm"),
    "attention.query_key_value": Alike(f"{_NEOX_LAYER}.attention.query_key_value"),
    "attention.dense": Alike(f"{_NEOX_LAYER}.attention.dense"),
    "post_attention_layernorm": Alike(f"{_NEOX_LAYER}.post_attention_layernorm"),
    "mlp.linear1": Alike(f"{_NEOX_LAYER}.mlp.dense_h_to_4h"),
    "mlp.linear2": Alike(f"{_NEOX_LAYER}.mlp.dense_4h_to_h"),
    "norm": Alike("gpt_neox.final_layer_norm"),
    "final_linear": Alike("embed_out"),
}

_NO_BIASES = always(use_bias_in_attn_linear=False, use_bias_in_mlp=False)
_NO_MLP_BIAS = always(use_bias_in_mlp=False)

# Embeddings enter as long as they would be if each feature had the variance 1.
_GEMMA_SCALE = Field(
    (), lambda _: {}, lambda config: {"embedding_scale": value_of(config, "hidden_size") ** 0.5}
)


LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    _LLAMA,
    (
        *_sizes(positions=2048),
        *_RMS,
        activation(gated=True, default="silu"),
        kv_heads(None),
        head_dim(None),
        WHOLE_HEADS,
        same("attention_bias", "use_bias_in_attn_linear", default=False),
        same("mlp_bias", "use_bias_in_mlp", default=False),
        opposite("tie_word_embeddings", "no_weight_tying", default=False),
        unread("pretraining_tp", 1),
    ),
)

MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    _LLAMA,
    (
        *_sizes(positions=131072),
        *_RMS,
        _NO_BIASES,
        activation(gated=True, default="silu"),
        kv_heads(8),
        head_dim(None),
        one_window(default=4096),
        opposite("tie_word_embeddings", "no_weight_tying", default=False),
    ),
)

QWEN2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    _LLAMA,
    (
        *_sizes(positions=32768),
        *_RMS,
        _NO_BIASES,
        always(use_bias_in_qkv=True),
        activation(gated=True, default="silu"),
        kv_heads(32),
        windows_of_some_layers(width=4096, first=28),
        opposite("tie_word_embeddings", "no_weight_tying", default=False),
    ),
)

QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    {**_LLAMA, **_HEAD_NORMS},
    (
        *_sizes(positions=32768),
        *_RMS,
        _NO_MLP_BIAS,
        always(qk_norm="head"),
        same("attention_bias", "use_bias_in_attn_linear", default=False),
        activation(gated=True, default="silu"),
        kv_heads(32),
        head_dim(128),
        windows_of_some_layers(width=4096, first=28),
        opposite("tie_word_embeddings", "no_weight_tying", default=False),
    ),
)

GEMMA = Family(
    "gemma",
    "GemmaForCausalLM",
    _LLAMA,
    (
        *_sizes(positions=8192),
        *_RMS,
        _NO_MLP_BIAS,
        always(norm_weight_offset=1.0),
        _GEMMA_SCALE,
        same("attention_bias", "use_bias_in_attn_linear", default=False),
        # "gelu" in hidden_act has always meant the tanh form here; releases 4 read hidden_activation.
        activation(
            gated=True,
            names=("hidden_act", "hidden_activation"),
            default="gelu_pytorch_tanh",
            also={"gelu": "gelu_pytorch_tanh"},
        ),
        kv_heads(16),
        head_dim(256),
        opposite("tie_word_embeddings", "no_weight_tying", default=True),
        fixed("use_bidirectional_attention", None, False),
    ),
)

GPT_NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    _NEOX,
    (
        *_sizes(positions=2048),
        always(norm="layernorm", use_bias_in_norms=True, use_bias_in_mlp=True, pos_emb="rotary"),
        PLAIN_MLP,
        neox_rotary(),
        activation(gated=False, default="gelu"),
        same("layer_norm_eps", "layernorm_epsilon", default=1e-5),
        same("use_parallel_residual", "gpt_j_residual", default=True),
        same("attention_bias", "use_bias_in_attn_linear", default=True),
        same("hidden_dropout", default=0.0),
        opposite("tie_word_embeddings", "no_weight_tying", default=False),
        unread("classifier_dropout", 0.0),
        fixed("is_decoder", False, True),
    ),
    leftovers=("rotary_emb.inv_freq", "attention.bias", "attention.masked_bias"),
    # From release 5.13 on; these read the older name as well.
    other_names={"lm_head": "embed_out"},
)

# Of several families that can express a model, the first is taken.
FAMILIES: tuple[Family, ...] = (GPT_NEOX, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA)
