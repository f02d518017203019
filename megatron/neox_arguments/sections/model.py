"""The shape of the model, and what follows from it. ``b`` batch, ``s`` sequence, ``h`` hidden size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from megatron.neox_arguments.typed import (
    Dropout,
    NotYet,
    PositiveFloat,
    PositiveInt,
    Range,
    Share,
)

Init = Annotated[
    Literal["normal", "scaled_normal", "small_init", "wang_init"],
    NotYet(
        (
            "orthogonal",
            "scaled_orthogonal",
            "xavier_uniform",
            "xavier_normal",
            "single_residual_scaled_normal",
        )
    ),
]
GATED_ACTIVATIONS = frozenset({"swiglu"})
ATTENTION_KINDS = frozenset({"global", "flash"})

# Of sizes that are required, or follow from one that is: the checks let no object through in which
# one is missing, so their type is that of a size. Until then, None stands for "not given".
_FILLED_IN: Any = None


@dataclass(frozen=True)
class ModelArgs:
    """The dense decoder: sizes, norms, positions, residuals, biases, initialisation, dropout."""

    precision: Literal["fp32", "bfloat16", "fp16"] = "fp32"
    """Type of the weights that compute. `bf16: {enabled: true}` says the same as `bfloat16`, and
    `fp16: {enabled: true}` as `fp16`; they must agree. `fp16` scales the loss."""

    num_layers: Annotated[int, Range(low=1, high=10_000)] = _FILLED_IN
    """Transformer layers. Required."""

    hidden_size: PositiveInt = _FILLED_IN
    """Width of the residual stream. Required; a multiple of `num_attention_heads`."""

    intermediate_size: PositiveInt | None = None
    """Width of the MLP before gating rules: a gated activation takes two thirds of it, for both of its
    halves together. Default: `expansion_factor` x `hidden_size`."""

    mlp_multiple_of: PositiveInt = 1
    """The MLP's width is rounded up to a multiple of twice this number."""

    expansion_factor: PositiveFloat | None = None
    """MLP width as a multiple of `hidden_size` when `intermediate_size` is not given. Default: 4."""

    num_attention_heads: PositiveInt = _FILLED_IN
    """Query heads. Required."""

    num_kv_heads: PositiveInt | None = None
    """Key and value heads; fewer than query heads is grouped-query attention. Default:
    `num_attention_heads`."""

    seq_length: PositiveInt = _FILLED_IN
    """Tokens of one training sample. Required."""

    max_position_embeddings: PositiveInt = _FILLED_IN
    """Positions that the model knows; at least `seq_length`. Default: `seq_length`."""

    norm: Annotated[
        Literal["layernorm", "rmsnorm"],
        NotYet(("non_parametric_layernorm", "scalenorm", "te_rmsnorm", "te_layernorm")),
    ] = "layernorm"
    """Normalisation in front of each block and at the end."""

    layernorm_epsilon: PositiveFloat = 1e-5
    """Added to the variance by `norm: layernorm`."""

    rms_norm_epsilon: PositiveFloat = 1e-8
    """Added to the mean square by `norm: rmsnorm`."""

    pos_emb: Annotated[
        Literal["learned", "rotary", "none"], NotYet(("sinusoidal", "rpe", "alibi"))
    ] = "learned"
    """How positions enter: a learned table, rotations of queries and keys, or not at all."""

    rotary_pct: Share = 1.0
    """Share of each head that `pos_emb: rotary` rotates; must come out as an even number of dimensions."""

    rotary_emb_base: PositiveInt = 10000
    """Base of the rotary frequencies."""

    no_weight_tying: bool = False
    """true gives the output layer weights of its own; false shares the word embedding's."""

    attention_config: tuple[Any, ...] | None = None
    """Kind of attention per layer, as `[[[kinds...], repeats], ...]`; `global` and `flash` (the same
    attention through the fused path) are here. Default: global everywhere."""

    make_vocab_size_divisible_by: PositiveInt = 128
    """The embedding has as many rows as the vocabulary rounded up to a multiple of this number times
    `model_parallel_size`."""

    activation: Annotated[
        Literal["gelu", "relu", "silu", "swiglu"],
        NotYet(("geglu", "softsign", "swish", "mish", "reglu", "bilinear", "glu")),
    ] = "gelu"
    """Function inside the MLP. `swiglu` is gated: its first layer gives value and gate."""

    bias_gelu_fusion: bool = False
    """Which form `activation: gelu` has: true the tanh form, false the erf form."""

    gpt_j_residual: bool = False
    """true computes attention and MLP side by side from the same input (each with its own norm)."""

    use_bias_in_norms: bool = True
    """Whether `norm: layernorm` has a bias. RMSNorm has none."""

    use_bias_in_attn_linear: bool = True
    """Whether the linear layers of attention have biases."""

    use_bias_in_mlp: bool = True
    """Whether the linear layers of the MLP have biases."""

    init_method: Init = "normal"
    """How weights are drawn: `normal` (`init_method_std`), `scaled_normal` (that, divided by
    sqrt(2 x layers)), `small_init` (sqrt(2 / (5 x hidden))), `wang_init` (2 / (layers x sqrt(hidden)))."""

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
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return self.num_kv_heads or self.num_attention_heads

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are rotated."""
        return int(self.head_dim * self.rotary_pct) if self.pos_emb == "rotary" else 0

    @property
    def is_gated(self) -> bool:
        """Whether the MLP's first layer gives value and gate."""
        return self.activation in GATED_ACTIVATIONS

    @property
    def mlp_width(self) -> int:
        """Width of what enters the MLP's second layer; a gated first layer puts out twice this.

        GPT-NeoX's rule: the asked-for width (two thirds of it, rounded down, when gated) is rounded up
        to a multiple of 2 x `mlp_multiple_of`; a gated MLP halves the result.
        """
        hidden = self.hidden_size
        width = self.intermediate_size or int((self.expansion_factor or 4) * hidden)
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

    def parameter_count(self, padded_vocab_size: int) -> int:
        """Trainable parameters of the whole model, over all ranks."""
        return sum(self.layer_parameter_counts(padded_vocab_size))

    def layer_parameter_counts(self, padded_vocab_size: int) -> tuple[int, ...]:
        """Parameters of each entry of the layer list: embedding, a function, transformer layers, a
        function, final norm, head. A tied head has none of its own."""
        h = self.hidden_size
        norm = h * (2 if self.norm == "layernorm" and self.use_bias_in_norms else 1)
        qkv = h + 2 * self.kv_heads * self.head_dim
        attention = h * qkv + h * h + (qkv + h if self.use_bias_in_attn_linear else 0)
        first = self.mlp_width * (2 if self.is_gated else 1)
        mlp = h * first + self.mlp_width * h + (first + h if self.use_bias_in_mlp else 0)
        head = padded_vocab_size * h if self.no_weight_tying else 0
        embedding = self.embedding_parameter_count(padded_vocab_size)
        blocks = (attention + mlp + 2 * norm,) * self.num_layers
        return (embedding, 0, *blocks, 0, norm, head)

    def embedding_parameter_count(self, padded_vocab_size: int) -> int:
        """Parameters of the tables that are looked up: of ids, and of learned positions."""
        learned = self.max_position_embeddings if self.pos_emb == "learned" else 0
        return self.hidden_size * (padded_vocab_size + learned)


def expand_attention_config(config: tuple[Any, ...], num_layers: int) -> tuple[str, ...]:
    """``[[[kinds...], repeats], ...]`` written out per layer; ``all`` repeats up to ``num_layers``.

    Raises:
        ValueError: it has another form, or does not come out at ``num_layers`` layers.
    """
    kinds: list[str] = []
    for entry in config:
        is_pair = isinstance(entry, tuple | list) and len(entry) == 2
        if not is_pair or not isinstance(entry[0], tuple | list) or not entry[0]:
            raise ValueError("expected [[[kinds...], repeats], ...], such as [[[global], 12]]")
        pattern, repeats = entry
        if not all(isinstance(kind, str) for kind in pattern):
            raise ValueError("a kind of attention is a word, such as global")
        if repeats == "all":
            repeats = (num_layers - len(kinds)) // len(pattern)
        if (
            not isinstance(repeats, int)
            or isinstance(repeats, bool)
            or not 0 <= repeats <= num_layers
        ):
            raise ValueError(
                f"repeats are a whole number up to num_layers, or all; found {repeats!r}"
            )
        kinds += list(pattern) * repeats
    if len(kinds) != num_layers:
        raise ValueError(f"describes {len(kinds)} layers, but num_layers is {num_layers}")
    return tuple(kinds)
