"""The options of the model, each by its key and value: what every one of them is tested with."""

from __future__ import annotations

from typing import Any, NamedTuple


class Option(NamedTuple):
    """Attributes: the ``key`` and ``value`` that it is about, and what else a model with it needs."""

    key: str
    value: Any
    beside: dict[str, Any]

    @property
    def changes(self) -> dict[str, Any]:
        return {self.key: self.value, **self.beside}

    def __str__(self) -> str:
        beside = "".join(f", {key}={value}" for key, value in self.beside.items())
        return f"{self.key}={self.value}{beside}"


def _option(key: str, value: Any, **beside: Any) -> Option:
    return Option(key, value, beside)


_RMS = {"norm": "rmsnorm", "rms_norm_epsilon": 1e-5}
OPTIONS = [
    _option("norm", "layernorm"),
    _option("norm", "rmsnorm", rms_norm_epsilon=1e-3),
    _option("norm", "non_parametric_layernorm"),
    _option("norm", "scalenorm"),
    _option("layernorm_epsilon", 0.3),
    _option("rms_norm_epsilon", 0.3, norm="rmsnorm"),
    _option("scalenorm_epsilon", 2.0, norm="scalenorm"),
    _option("norm_weight_offset", 1.0),
    _option("norm_weight_offset", 1.0, **_RMS, qk_norm="head"),
    _option("use_bias_in_norms", False),
    _option("qk_norm", "neox"),
    _option("qk_norm", "head", num_kv_heads=2),
    _option("qk_norm", "head", **_RMS, num_kv_heads=2),
    _option("use_qk_layernorm", True, use_bias_in_norms=False),
    _option("head_dim", 12, num_kv_heads=2),
    _option("head_dim", 6),
    _option("num_kv_heads", 4),
    _option("num_kv_heads", 2),
    _option("num_kv_heads", 1),
    _option("use_bias_in_qkv", True, use_bias_in_attn_linear=False),
    _option("use_bias_in_qkv", False, num_kv_heads=2),
    _option("use_bias_in_attn_linear", False),
    _option("use_bias_in_mlp", False),
    _option("embedding_scale", 5.5),
    _option("no_weight_tying", True),
    _option("gpt_j_residual", True),
    _option("gpt_j_tied", True, gpt_j_residual=True),
    _option("pos_emb", "rotary"),
    _option("pos_emb", "learned"),
    _option("pos_emb", "sinusoidal"),
    _option("pos_emb", "none"),
    _option("pos_emb", "alibi"),
    _option("pos_emb", "alibi", num_kv_heads=2, sliding_window_width=5),
    _option("pos_emb", "alibi", num_attention_heads=6, hidden_size=48),
    _option("pos_emb", "rpe", rpe_num_buckets=8, rpe_max_distance=12),
    _option("pos_emb", "rpe", rpe_num_buckets=6, num_kv_heads=2, sliding_window_width=5),
    _option("sliding_window_width", 3),
    _option("sliding_window_width", 4, attention_config=((("global", "local"), 1),)),
    _option("attention_config", ((("global",), 2),)),
    _option("attention_config", ((("flash",), 2),)),
    _option("attention_config", ((("local",), 2),), sliding_window_width=4),
    _option("rotary_pct", 0.5),
    _option("rotary_emb_base", 50),
    _option("opt_pos_emb_offset", 2, pos_emb="learned"),
    *(
        _option("activation", name)
        for name in ("gelu", "relu", "softsign", "swish", "mish", "silu")
    ),
    *(
        _option("activation", name, intermediate_size=72, mlp_multiple_of=4)
        for name in ("geglu", "reglu", "swiglu", "bilinear", "glu")
    ),
    _option("intermediate_size", 40),
    _option("expansion_factor", 1.5),
    _option("mlp_multiple_of", 12),
    _option("bias_gelu_fusion", True),
    _option("gelu_form", "tanh", activation="geglu"),
    _option("gelu_form", "tanh"),
    _option("gelu_form", "erf", bias_gelu_fusion=True),
]
