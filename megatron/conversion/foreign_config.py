"""What a Hugging Face ``config.json`` says about its model, in keys of ours."""

from __future__ import annotations

from pathlib import Path

from megatron.conversion.expressible import family_named
from megatron.conversion.families import Family
from megatron.conversion.fields import Config, Inexpressible, Keys
from megatron.errors import CheckpointError

# Tokens of a sample where nobody has said anything; the model may know more positions.
_SEQ_LENGTH = 2048

# What is about something else than what the model computes, or read elsewhere.
_ASIDE = frozenset(
    {
        "architectures",
        "model_type",
        "vocab_size",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "use_cache",
        "id2label",
        "label2id",
        "_name_or_path",
        "_attn_implementation_autoset",
        "return_dict",
        "chunk_size_feed_forward",
        "output_attentions",
        "output_hidden_states",
        # GPT-NeoX's rotary_emb_base and rotary_pct once more, in files of releases 4.
        "rope_theta",
        "partial_rotary_factor",
    }
)


def keys_of(config: Config, path: Path) -> tuple[Family, Keys]:
    """The family of a ``config.json`` and the architecture in keys of ours.

    Args:
        config: its content.
        path: of the file, for messages.

    Raises:
        CheckpointError: the family is not in the table, or we have no words for what the file says.
    """
    if config.get("quantization_config"):
        raise CheckpointError(
            f"{path}: quantization_config\n  found: quantised weights\n"
            "  expected: weights as they were trained, in fp32, bf16 or fp16\n"
            "  to do: convert the model that this one was made from"
        )
    name = config.get("model_type")
    if not isinstance(name, str):
        raise CheckpointError(f"{path}: model_type is missing: which family is it of?")
    family = family_named(name)
    try:
        keys = family.read(config)
    except Inexpressible as error:
        raise CheckpointError(
            f"{path}: {error.where}\n  found: {error.found!r}\n  expected: {error.expected}\n"
            "  to do: models with another value cannot be expressed in keys of this project yet"
        ) from error
    keys["seq_length"] = min(_SEQ_LENGTH, keys["max_position_embeddings"])
    return family, keys


def vocabulary_in(config: Config, path: Path) -> int:
    """How many ids the model of a ``config.json`` has.

    Raises:
        CheckpointError: it does not say so.
    """
    found = config.get("vocab_size")
    if not isinstance(found, int) or found < 1:
        raise CheckpointError(
            f"{path}: vocab_size\n  found: {found!r}\n  expected: a number of ids"
        )
    return found


def not_understood(family: Family, config: Config) -> list[str]:
    """Fields that say something which the table does not know, as ``name: value``."""
    return [
        f"{name}: {value!r}"
        for name, value in config.items()
        if name not in family.known | _ASIDE and value not in (None, False, [], {})
    ]
