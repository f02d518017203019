"""The shape of the model, and what follows from it. ``b`` batch, ``s`` sequence, ``h`` hidden size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from megatron.neox_arguments.sections.attention import AttentionArgs, expand_attention_config
from megatron.neox_arguments.sections.norms import NormArgs
from megatron.neox_arguments.sections.positions import PositionArgs
from megatron.neox_arguments.typed import (
    Dropout,
    PositiveFloat,
    PositiveInt,
    Range,
)

Init = Literal[
    "normal",
    "scaled_normal",
    "orthogonal",
    "scaled_orthogonal",
    "xavier_uniform",
    "xavier_normal",
    "wang_init",
    "small_init",
    "single_residual_scaled_normal",
]
GATED_ACTIVATIONS = frozenset({"geglu", "reglu", "swiglu", "bilinear", "glu"})

# Of sizes that are required, or follow from one that is: the checks let no object through in which
# one is missing, so their type is that of a size. Until then, None stands for "not given".
_FILLED_IN: Any = None


@dataclass(frozen=True)
class ModelArgs(NormArgs, PositionArgs, AttentionArgs):
    """The dense decoder: sizes, norms, positions, residuals, biases, initialisation, dropout."""

    precision: Literal["fp32", "bfloat16", "fp16"] = "fp32"
    """Type of the weights that compute. `bf16: {enabled: true}` says the same as `bfloat16`, and
    `fp16: {enabled: true}` as `fp16`; they must agree. `fp16` scales the loss."""

    num_layers: Annotated[int, Range(low=1, high=10_000)] = _FILLED_IN
    """Transformer layers. Required."""

    hidden_size: PositiveInt = _FILLED_IN
    """Width of the residual stream. Required; without `head_dim` a multiple of `num_attention_heads`."""

    intermediate_size: PositiveInt | None = None
    """Width of the MLP before gating rules: a gated activation takes two thirds of it, for both of its
    halves together. Default: `expansion_factor` x `hidden_size`."""

    mlp_multiple_of: PositiveInt = 1
    """The MLP's width is rounded up to a multiple of twice this number."""

    expansion_factor: PositiveFloat | None = None
    """MLP width as a multiple of `hidden_size` when `intermediate_size` is not given. Default: 4."""

    num_attention_heads: PositiveInt = _FILLED_IN
    """Query heads. Required."""

    head_dim: PositiveInt | None = None
    """Width of one attention head. Default: `hidden_size` / `num_attention_heads`."""

    num_kv_heads: PositiveInt | None = None
    """Key and value heads; fewer than query heads is grouped-query attention. Default:
    `num_attention_heads`."""

    seq_length: PositiveInt = _FILLED_IN
    """Tokens of one training sample. Required."""

    max_position_embeddings: PositiveInt = _FILLED_IN
    """Positions that the model knows; at least `seq_length`. Default: `seq_length`."""

    no_weight_tying: bool = False
    """true gives the output layer weights of its own; false shares the word embedding's."""

    make_vocab_size_divisible_by: PositiveInt = 128
    """The embedding has as many rows as the vocabulary rounded up to a multiple of this number times
    `model_parallel_size`."""

    activation: Literal[
        "gelu",
        "geglu",
        "relu",
        "softsign",
        "swish",
        "mish",
        "silu",
        "reglu",
        "swiglu",
        "bilinear",
        "glu",
    ] = "gelu"
    """Function inside the MLP; `swish` is `silu`. Gated, with a first layer that gives value and gate, are
    `geglu`, `reglu`, `swiglu`, `bilinear` and `glu`: gelu, relu, silu, nothing and the logistic function of
    the gate, times the value."""

    bias_gelu_fusion: bool = False
    """Which form `activation: gelu` has: true the tanh form, false the erf form."""

    gelu_form: Literal["erf", "tanh"] | None = None
    """Form of gelu in `activation: gelu` and `geglu`. Default: `bias_gelu_fusion`'s for `gelu`, erf for
    `geglu`."""

    embedding_scale: PositiveFloat = 1.0
    """Factor on word embeddings where they enter; sqrt(hidden_size) in Gemma. The head does not see it."""

    gpt_j_residual: bool = False
    """true computes attention and MLP side by side from the same input (each with its own norm)."""

    gpt_j_tied: bool = False
    """With `gpt_j_residual`: one norm for attention and MLP, `input_layernorm`."""

    use_bias_in_attn_linear: bool = True
    """Whether the linear layers of attention have biases."""

    use_bias_in_qkv: bool | None = None
    """Whether the projection to queries, keys and values has a bias. Default: `use_bias_in_attn_linear`."""

    use_bias_in_mlp: bool = True
    """Whether the linear layers of the MLP have biases."""

    init_method: Init = "normal"
    """How weights are drawn. Normal, of a deviation: `normal` (`init_method_std`), `scaled_normal` (that,
    divided by sqrt(2 x layers)), `single_residual_scaled_normal` (by sqrt(layers)), `small_init`
    (sqrt(2 / (5 x hidden))), `wang_init` (2 / (layers x sqrt(hidden))), `xavier_normal` (sqrt(2 / (inputs +
    outputs))); `xavier_uniform` of that deviation; `orthogonal` with a gain of sqrt(2), and
    `scaled_orthogonal` of sqrt(2 / layers)."""

    init_method_std: PositiveFloat = 0.02
    """Standard deviation of `normal` and, before scaling, `scaled_normal`."""

    output_layer_init_method: Init = "scaled_normal"
    """How the weights that write into the residual stream are drawn; same choices as `init_method`."""

    hidden_dropout: Dropout = 0.0
    """Probability of dropping each element of what a block adds to the residual stream."""

    attention_dropout: Dropout = 0.0
    """Probability of dropping each attention weight."""

    # What follows from the above.

    @property
    def is_given(self) -> bool:
        """Whether there is a model at all; a part of a configuration may have none."""
        return bool(self.num_layers)

    @property
    def heads_are_whole(self) -> bool:
        """Whether heads have a width, given or shared out evenly."""
        return self.head_dim is not None or self.hidden_size % self.num_attention_heads == 0

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def attention_width(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_width

    @property
    def qkv_has_bias(self) -> bool:
        """Whether the projection to queries, keys and values has a bias."""
        given = self.use_bias_in_qkv
        return self.use_bias_in_attn_linear if given is None else given

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return self.num_kv_heads or self.num_attention_heads

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are rotated."""
        return int(self.head_width * self.rotary_pct) if self.pos_emb == "rotary" else 0

    @property
    def is_gated(self) -> bool:
        """Whether the MLP's first layer gives value and gate."""
        return self.activation in GATED_ACTIVATIONS

    @property
    def has_tanh_gelu(self) -> bool:
        """Whether gelu, plain or of a gate, has its tanh form."""
        if self.activation not in ("gelu", "geglu"):
            return False
        if self.gelu_form is not None:
            return self.gelu_form == "tanh"
        return self.activation == "gelu" and self.bias_gelu_fusion

    @property
    def asked_mlp_width(self) -> int:
        """The MLP's width before gating and rounding."""
        return self.intermediate_size or int((self.expansion_factor or 4) * self.hidden_size)

    @property
    def mlp_width(self) -> int:
        """Width of what enters the MLP's second layer; a gated first layer puts out twice this.

        GPT-NeoX's rule: the asked-for width (two thirds of it, rounded down, when gated) is rounded up
        to a multiple of 2 x `mlp_multiple_of`; a gated MLP halves the result.
        """
        width = self.asked_mlp_width
        if self.is_gated:
            width = int(width * 2 / 3)
        step = 2 * self.mlp_multiple_of
        width = -(-width // step) * step
        return width // 2 if self.is_gated else width

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """The kind of attention of each layer, `attention_config` written out."""
        layers = self.num_layers
        if self.attention_config is None:
            return ("global",) * layers
        return expand_attention_config(self.attention_config, layers)

    def window_of(self, layer: int) -> int | None:
        """Tokens back that transformer layer ``layer`` sees, itself included; None for all."""
        kinds = self.attention_kinds
        return None if "local" in kinds and kinds[layer] != "local" else self.sliding_window_width

    @property
    def learned_positions(self) -> int:
        """Rows of the learned table of positions."""
        if self.pos_emb != "learned":
            return 0
        return self.max_position_embeddings + self.opt_pos_emb_offset

    def parameter_count(self, padded_vocab_size: int) -> int:
        """Trainable parameters of the whole model, over all ranks."""
        return sum(self.layer_parameter_counts(padded_vocab_size))

    def layer_parameter_counts(self, padded_vocab_size: int) -> tuple[int, ...]:
        """Parameters of each entry of the layer list: embedding, a function, transformer layers, a
        function, final norm, head. A tied head has none of its own."""
        norm = self.norm_parameter_count(self.hidden_size)
        head = padded_vocab_size * self.hidden_size if self.no_weight_tying else 0
        embedding = self.embedding_parameter_count(padded_vocab_size)
        block = (
            self._attention_parameter_count()
            + self._mlp_parameter_count()
            + self.norms_a_block * norm
        )
        # One table of distances for all layers.
        table = self.rpe_num_buckets * self.num_attention_heads if self.pos_emb == "rpe" else 0
        blocks = (block + table, *(block,) * (self.num_layers - 1))
        return (embedding, 0, *blocks, 0, norm, head)

    @property
    def norms_a_block(self) -> int:
        """Norms in front of attention and MLP."""
        return 1 if self.gpt_j_tied else 2

    def _attention_parameter_count(self) -> int:
        h, width = self.hidden_size, self.attention_width
        qkv = width + 2 * self.kv_heads * self.head_width
        weights, biases = h * qkv + width * h, 0
        biases += qkv if self.qkv_has_bias else 0
        biases += h if self.use_bias_in_attn_linear else 0
        norms = {
            "none": 0,
            "neox": self.norm_parameter_count(width),
            "head": 2 * self.norm_parameter_count(self.head_width),
        }
        return weights + biases + norms[self.qk_norm_kind]

    def _mlp_parameter_count(self) -> int:
        h, width = self.hidden_size, self.mlp_width
        first = width * (2 if self.is_gated else 1)
        return h * first + width * h + (first + h if self.use_bias_in_mlp else 0)

    def embedding_parameter_count(self, padded_vocab_size: int) -> int:
        """Parameters of the tables that are looked up: of ids, and of learned positions."""
        learned = self.learned_positions
        return self.hidden_size * (padded_vocab_size + learned)
