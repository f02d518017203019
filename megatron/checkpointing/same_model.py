"""Whether two configurations describe the same model, beyond what the shapes of its tensors show.

Weights would fill a model of another kind just as well: another number of heads, another base of the rotary
embedding, another activation.
"""

from __future__ import annotations

import json
from dataclasses import fields

from megatron.checkpointing.fitting import refusal
from megatron.checkpointing.folders import CONFIG_FOLDER, EFFECTIVE_CONFIG_NAME
from megatron.checkpointing.looking import CheckpointInfo
from megatron.errors import CheckpointError
from megatron.logging import get_logger
from megatron.neox_arguments.sections import ModelArgs

log = get_logger(__name__)

# Keys that shapes do not show, or show less clearly; what each key's value comes to in a model.
_COMPARED = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_kv_heads": "kv_heads",
    "pos_emb": "pos_emb",
    "rotary_pct": "rotary_pct",
    "rotary_emb_base": "rotary_emb_base",
    "rotary_scaling": "rotary_scaling",
    "rotary_scaling_factor": "rotary_scaling_factor",
    "rotary_original_positions": "rotary_original_positions",
    "rotary_low_freq_factor": "rotary_low_freq_factor",
    "rotary_high_freq_factor": "rotary_high_freq_factor",
    "rotary_beta_fast": "rotary_beta_fast",
    "rotary_beta_slow": "rotary_beta_slow",
    "rotary_attention_factor": "rotary_attention_factor",
    "norm": "norm",
    "layernorm_epsilon": "norm_epsilon",
    "rms_norm_epsilon": "norm_epsilon",
    "scalenorm_epsilon": "norm_epsilon",
    "norm_weight_offset": "norm_weight_offset",
    "activation": "activation",
    "embedding_scale": "embedding_scale",
    "gpt_j_residual": "gpt_j_residual",
    "gpt_j_tied": "gpt_j_tied",
    "no_weight_tying": "no_weight_tying",
    "use_qk_layernorm": "qk_norm_kind",
    "use_bias_in_attn_linear": "use_bias_in_attn_linear",
    "opt_pos_emb_offset": "opt_pos_emb_offset",
    "rpe_num_buckets": "rpe_num_buckets",
    "rpe_max_distance": "rpe_max_distance",
}
# What a key of this beginning means nothing without.
_OF_POSITIONS = {"rotary_": "rotary", "rpe_": "rpe", "opt_": "learned"}
_EPSILON_OF = {"layernorm": "layernorm_epsilon", "rmsnorm": "rms_norm_epsilon"}
# Other words for the same function.
_SAME = {"swish": "silu"}


def model_of(info: CheckpointInfo) -> ModelArgs:
    """The model's section of the configuration that a checkpoint was made with.

    Raises:
        CheckpointError: its copy of the configuration cannot be read.
    """
    path = info.path / CONFIG_FOLDER / EFFECTIVE_CONFIG_NAME
    try:
        values = json.loads(path.read_bytes())
        return ModelArgs(**{f.name: values[f.name] for f in fields(ModelArgs) if f.name in values})
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def check_same_model(found: CheckpointInfo, model: ModelArgs, *, finetune: bool) -> None:
    """Refuse to train on as another model than the one that was trained; say so in a fine-tuning.

    Names and shapes are compared where weights are loaded. This is about what they do not show.

    Raises:
        CheckpointError: the configuration in the checkpoint describes another model.
    """
    if found.manifest is None:
        return
    changed = model_differences(model_of(found), model)
    if not changed:
        return
    if finetune:
        log.info("finetune: another model than was trained: %s", "; ".join(changed))
        return
    raise refusal(
        found,
        "its run trained another model than this configuration describes",
        changed,
        "restore these keys, or start anew from its weights with finetune: true",
    )


def model_differences(theirs: ModelArgs, ours: ModelArgs) -> list[str]:
    """The keys whose meaning is another one there than here, as ``key: there → here``."""
    found = []
    for key, meaning in _COMPARED.items():
        there, here = getattr(theirs, meaning), getattr(ours, meaning)
        if _SAME.get(there, there) != _SAME.get(here, here) and _counts(key, ours):
            found.append(f"{key}: {there} → {here}")
    if theirs.num_layers == ours.num_layers and _windows(theirs) != _windows(ours):
        found.append("attention_config, sliding_window_width: other windows → those of this run")
    return found


def _counts(key: str, model: ModelArgs) -> bool:
    """Whether ``key`` has a meaning in ``model``."""
    if key.endswith("epsilon"):
        return key == _EPSILON_OF.get(model.norm, "scalenorm_epsilon")
    kinds = [kind for beginning, kind in _OF_POSITIONS.items() if key.startswith(beginning)]
    return not kinds or model.pos_emb in kinds


def _windows(model: ModelArgs) -> list[int | None]:
    """How far each layer sees."""
    return [model.window_of(layer) for layer in range(model.num_layers)]
