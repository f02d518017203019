"""Llama as it was published, releases 1 to 3.3: ``params.json`` beside ``consolidated.<NN>.pth``.

One more row of the table of families, for imports alone. Its rows of queries and keys lie in the order of
rotations that turn neighbours; ours turn the two halves of a head.

``params.json`` does not say everything. The width of the MLP and the number of ids are those of the tensors.
Scaled rotations (``use_scaled_rope``) lengthen by 8 in Llama 3.1 and 3.3, by 32 in the smaller models of 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron.conversion.comparison import Reference
from megatron.conversion.families import Family
from megatron.conversion.fields import (
    GATED_MLP,
    Config,
    Field,
    Inexpressible,
    Keys,
    always,
    fixed,
    opposite,
    same,
    told,
    value_of,
)
from megatron.conversion.foreign_config import not_understood
from megatron.conversion.hf_folder import read_json
from megatron.conversion.places import Alike, Gated, Projections
from megatron.conversion.raw_reference import RawModel, Scaling, raw_logits
from megatron.conversion.raw_shards import RawShards
from megatron.conversion.sources import Source, require_precision
from megatron.errors import CheckpointError
from megatron.neox_arguments.sections import ModelArgs

PARAMS_NAME = "params.json"
_SEQ_LENGTH = 2048
_BASE = 10000.0
_FACTOR = "rope_scaling_factor"
# From this width on models of Llama 3 lengthen by 8, below by 32.
_WIDE = 4096
# Tokens of the training, by the base of the rotations, from the largest base on; longest first.
_POSITIONS = ((1e6, 16384), (5e5, 8192), (0.0, 4096))
_SCALED_POSITIONS = 131072


@dataclass(frozen=True)
class TurnedProjections(Projections):
    """The same, queries and keys in the order of rotations that turn neighbours."""

    def split(self, model: ModelArgs, whole: Tensor) -> Sequence[Tensor]:
        query, key, value = super().split(model, whole)
        return _neighbours(query, model.head_width), _neighbours(key, model.head_width), value

    def join(self, model: ModelArgs, pieces: Sequence[Tensor]) -> Tensor:
        query, key, value = pieces
        width = model.head_width
        return super().join(model, (_halves(query, width), _halves(key, width), value))


def _halves(rows: Tensor, width: int) -> Tensor:
    """Rows [heads d, ...] whose pairs are neighbours, with those of a pair half a head apart."""
    return rows.reshape(-1, width // 2, 2, *rows.shape[1:]).transpose(1, 2).flatten(0, 2)


def _neighbours(rows: Tensor, width: int) -> Tensor:
    """The inverse of :func:`_halves`."""
    return rows.reshape(-1, 2, width // 2, *rows.shape[1:]).transpose(1, 2).flatten(0, 2)


def _nothing(_: ModelArgs) -> Config:
    """Nothing is ever written in this form."""
    return {}


def _kv_heads(config: Config) -> Keys:
    heads = value_of(config, "n_heads")
    return {"num_kv_heads": config.get("n_kv_heads") or heads}


def _rotations(config: Config) -> Keys:
    base = value_of(config, "rope_theta", _BASE)
    if base != int(base):
        raise Inexpressible("rope_theta", base, "a whole number, as rotary_emb_base is")
    keys: Keys = {"rotary_emb_base": int(base)}
    scaling = _scaling(config)
    if scaling is not None:
        keys |= {
            "rotary_scaling": "llama3",
            "rotary_scaling_factor": scaling.factor,
            "rotary_low_freq_factor": scaling.low,
            "rotary_high_freq_factor": scaling.high,
            "rotary_original_positions": scaling.positions,
        }
    return keys


def _scaling(config: Config) -> Scaling | None:
    if not config.get("use_scaled_rope"):
        return None
    usual = 8.0 if value_of(config, "dim") >= _WIDE else 32.0
    return Scaling(float(config.get(_FACTOR) or usual))


def _positions(config: Config) -> Keys:
    """Nothing but learned tables and the length of samples depends on it."""
    base = value_of(config, "rope_theta", _BASE)
    usual = next(positions for least, positions in _POSITIONS if base >= least)
    scaled = _SCALED_POSITIONS if config.get("use_scaled_rope") else usual
    found = config.get("max_seq_len") or scaled
    return {"max_position_embeddings": found, "seq_length": min(_SEQ_LENGTH, found)}


_LAYER = "layers.{}"
RAW_LLAMA = Family(
    "raw_llama",
    "Llama, as it was published",
    {
        "word_embeddings": Alike("tok_embeddings"),
        "input_layernorm": Alike(f"{_LAYER}.attention_norm"),
        "attention.query_key_value": TurnedProjections(
            f"{_LAYER}.attention.wq", f"{_LAYER}.attention.wk", f"{_LAYER}.attention.wv"
        ),
        "attention.dense": Alike(f"{_LAYER}.attention.wo"),
        "post_attention_layernorm": Alike(f"{_LAYER}.ffn_norm"),
        "mlp.linear1": Gated(f"{_LAYER}.feed_forward.w3", f"{_LAYER}.feed_forward.w1"),
        "mlp.linear2": Alike(f"{_LAYER}.feed_forward.w2"),
        "norm": Alike("norm"),
        "final_linear": Alike("output"),
    },
    (
        always(norm="rmsnorm", pos_emb="rotary", activation="swiglu"),
        always(use_bias_in_attn_linear=False, use_bias_in_mlp=False),
        same("n_layers", "num_layers"),
        same("dim", "hidden_size"),
        same("n_heads", "num_attention_heads"),
        same("norm_eps", "rms_norm_epsilon", default=1e-5),
        GATED_MLP,
        Field(("n_kv_heads",), _nothing, _kv_heads),
        Field(("rope_theta", "use_scaled_rope", _FACTOR), _nothing, _rotations),
        Field(("max_seq_len",), _nothing, _positions),
        opposite("tied", "no_weight_tying", default=False),
        fixed("sliding_window", None),
        fixed("moe", None),
        *(told(name, None) for name in ("multiple_of", "ffn_dim_multiplier", "max_batch_size")),
    ),
    leftovers=("rope.freqs",),
    config_name=PARAMS_NAME,
)


def raw_llama_source(
    folder: Path, dtype: torch.dtype | None, *, scaling_factor: float | None = None
) -> Source:
    """The model in a folder with ``params.json`` and ``consolidated.<NN>.pth``.

    Args:
        folder: of one model; its tokenizer may lie in the folder above.
        dtype: in which weights are wanted; None for that of the files.
        scaling_factor: by which ``use_scaled_rope`` lengthens, instead of the usual one.

    Raises:
        CheckpointError: the folder is not whole, or we have no words for its model.
    """
    path = folder / PARAMS_NAME
    params = read_json(path, expected=f"a folder with {PARAMS_NAME} and consolidated.00.pth")
    if scaling_factor is not None:
        params[_FACTOR] = scaling_factor
    try:
        heads, width = value_of(params, "n_heads"), value_of(params, "dim")
        kv_heads = _kv_heads(params)["num_kv_heads"]
        shards = RawShards(folder, width, kv_heads * (width // heads))
        config = {**params, **_seen(folder, shards)}
        keys = RAW_LLAMA.read(config)
    except Inexpressible as error:
        raise CheckpointError(
            f"{path}: {error.where}\n  found: {error.found!r}\n  expected: {error.expected}\n"
            "  to do: models with another value cannot be expressed in keys of this project yet"
        ) from error
    wanted = require_precision(folder, dtype or shards.dtype)
    place, tokenizer_notes = _tokenizer(folder)
    return Source(
        folder,
        RAW_LLAMA,
        keys,
        config["vocab_size"],
        shards,
        wanted,
        (*_notes(config), *tokenizer_notes),
        place,
        _reference(config, shards),
    )


def _seen(folder: Path, shards: RawShards) -> dict[str, Any]:
    """What the tensors say and ``params.json`` does not, or not in one number."""
    first, table = "layers.0.feed_forward.w1.weight", "tok_embeddings.weight"
    for name in (first, table):
        if name not in shards.names:
            raise CheckpointError(f"{folder}: {name} is not there: no weights of Llama's")
    return {
        "intermediate_size": shards.shape(first)[0],
        "vocab_size": shards.shape(table)[0],
        "tied": "output.weight" not in shards.names,
    }


def _notes(config: Mapping[str, Any]) -> tuple[str, ...]:
    unknown = [
        f"{PARAMS_NAME} says {fact}, which is not looked at here"
        for fact in not_understood(RAW_LLAMA, config)
    ]
    scaling = _scaling(config)
    if scaling is None or config.get(_FACTOR):
        return tuple(unknown)
    return (
        *unknown,
        f"{PARAMS_NAME} does not say by how much use_scaled_rope lengthens: {scaling.factor:g} is taken, "
        f"as {'Llama 3.1 and 3.3' if scaling.factor == 8 else 'the 1B and 3B of Llama 3.2'} have it; "
        "--rope_scaling_factor takes another",
    )


def _reference(config: Config, shards: RawShards) -> Reference:
    model = RawModel(
        layers=config["n_layers"],
        heads=config["n_heads"],
        kv_heads=_kv_heads(config)["num_kv_heads"],
        epsilon=config.get("norm_eps", 1e-5),
        base=float(config.get("rope_theta", _BASE)),
        scaling=_scaling(config),
        is_tied=config["tied"],
    )

    def logits(tokens: Tensor, dtype: torch.dtype) -> Tensor:
        return raw_logits(model, lambda name: shards.read(name).to(dtype).float(), tokens)

    return Reference("a plain computation's on the published weights", logits)


def _tokenizer(folder: Path) -> tuple[Path | None, tuple[str, ...]]:
    """Where a tokenizer lies that we read, and what to say where there is another."""
    places = (folder, folder.absolute().parent)
    for place in places:
        model = place / "tokenizer.model"
        if (place / "tokenizer.json").exists() or (model.exists() and _is_sentencepiece(model)):
            return place, ()
    if any((place / "tokenizer.model").exists() for place in places):
        return None, (
            "tokenizer.model is a list of tiktoken's, which is not read: put the tokenizer.json of the same "
            "model beside it, or name it as vocab_file with tokenizer_type: HFTokenizer",
        )
    return None, ()


def _is_sentencepiece(path: Path) -> bool:
    """Its first byte begins the field of pieces; tiktoken's lists are lines of base64."""
    with path.open("rb") as file:
        return file.read(1) == b"\n"
