"""Normalisation: in front of each block, at the end, and of queries and keys. ``h`` hidden size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from megatron.neox_arguments.typed import NonNegativeFloat, NotYet, PositiveFloat

NORMS_WITH_WEIGHTS = frozenset({"layernorm", "rmsnorm"})


@dataclass(frozen=True)
class NormArgs:
    """Which norms there are, and what they add to what they divide by."""

    norm: Annotated[
        Literal["layernorm", "rmsnorm", "non_parametric_layernorm", "scalenorm"],
        NotYet(("te_rmsnorm", "te_layernorm")),
    ] = "layernorm"
    """Normalisation in front of each block and at the end. `non_parametric_layernorm` has no weights,
    `scalenorm` a single one, the length that each token's vector gets."""

    layernorm_epsilon: PositiveFloat = 1e-5
    """Added to the variance by `norm: layernorm` and `non_parametric_layernorm`."""

    rms_norm_epsilon: PositiveFloat = 1e-8
    """Added to the mean square by `norm: rmsnorm`."""

    scalenorm_epsilon: PositiveFloat = 1e-8
    """Least length that `norm: scalenorm` divides by."""

    norm_weight_offset: NonNegativeFloat = 0.0
    """Added to the weights of norms when they are used: 1 for Gemma's norms, whose stored weights are
    around 0."""

    use_bias_in_norms: bool = True
    """Whether `norm: layernorm` has a bias. RMSNorm has none."""

    qk_norm: Literal["none", "neox", "head"] = "none"
    """Normalisation of queries and keys, before positions are turned in: `neox` is one `layernorm` over
    all heads of a token, with weights of [heads, head_dim] for queries and keys alike; `head` one norm of
    [head_dim] for queries and one for keys (`attention.q_norm.weight`, `attention.k_norm.weight`), of the
    kind that `norm` names."""

    use_qk_layernorm: bool = False
    """GPT-NeoX's name for `qk_norm: neox`."""

    @property
    def norm_epsilon(self) -> float:
        """Of the norm that `norm` names."""
        return {"rmsnorm": self.rms_norm_epsilon, "scalenorm": self.scalenorm_epsilon}.get(
            self.norm, self.layernorm_epsilon
        )

    @property
    def norm_has_bias(self) -> bool:
        """Whether the norms have biases."""
        return self.norm == "layernorm" and self.use_bias_in_norms

    @property
    def qk_norm_kind(self) -> str:
        """`qk_norm`, under either name."""
        return "neox" if self.use_qk_layernorm else self.qk_norm

    def norm_parameter_count(self, width: int) -> int:
        """Parameters of one norm over ``width`` features."""
        if self.norm not in NORMS_WITH_WEIGHTS:
            return int(self.norm == "scalenorm")
        return width * (1 + self.norm_has_bias)
