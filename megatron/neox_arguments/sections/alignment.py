"""Training on more than the next token: preferences, rewards, reinforcement; refused for now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from megatron.neox_arguments.typed import Ignored, NonNegativeFloat, Refused

_WITH_DPO = Ignored("has a meaning with train_impl: dpo only")
_WITH_KTO = Ignored("has a meaning with train_impl: kto only")
_WITH_REINFORCE = Ignored("has a meaning with train_impl: reinforce only")


@dataclass(frozen=True)
class AlignmentArgs:
    """What the loss is made of."""

    train_impl: Annotated[
        Literal["normal", "dpo", "rm", "kto", "reinforce"],
        Refused("only normal (next-token) training for now"),
    ] = "normal"
    """The loss: of the next token, of preferred against rejected texts, or of rewards."""

    z_loss: NonNegativeFloat = 0.0
    """Weight of log(Z)^2 in the training loss, where Z is what the softmax divides by: a small one (1e-4 in
    PaLM) keeps logits from drifting. The loss that training logs contains it, evaluations do not."""

    dpo_fp32: Annotated[bool, _WITH_DPO] = True
    """Whether log-probabilities are computed in fp32."""

    dpo_reference_free: Annotated[bool, _WITH_DPO] = False
    """Whether no reference model is compared with."""

    dpo_beta: Annotated[NonNegativeFloat, _WITH_DPO] = 0.1
    """How closely the model keeps to its reference."""

    kto_fp32: Annotated[bool, _WITH_KTO] = True
    """Whether log-probabilities are computed in fp32."""

    kto_desirable_weight: Annotated[NonNegativeFloat, _WITH_KTO] = 1.0
    """Weight of texts with a good reward."""

    kto_undesirable_weight: Annotated[NonNegativeFloat, _WITH_KTO] = 1.0
    """Weight of texts with a bad reward."""

    kto_beta: Annotated[NonNegativeFloat, _WITH_KTO] = 0.1
    """How closely the model keeps to its reference."""

    fp32_reinforce: Annotated[bool, _WITH_REINFORCE] = True
    """Whether log-probabilities are computed in fp32."""

    kl_impl: Annotated[Literal["abs", "mse", "kl", "full"], _WITH_REINFORCE] = "mse"
    """How the distance from the reference model is estimated."""

    kl_div_beta: Annotated[NonNegativeFloat, _WITH_REINFORCE] = 0.1
    """Weight of the distance from the reference model."""

    reinforce_leave_one_out: Annotated[bool, _WITH_REINFORCE] = False
    """Whether the mean reward of a prompt's other samples is the baseline."""
