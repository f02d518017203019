"""Folders as GPT-NeoX 2 writes them, from models of transformers.

Written from the names and shapes that the formats have, without the code that reads them: every rule of
which rank holds which rows is here a second time.
"""

from __future__ import annotations

import argparse
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from tests.conversion.hf_models import VOCAB, make_model

# Models by what transformers calls them: GPT-NeoX's keys for them.
_SIZES: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 8,
    "seq_length": 64,
    "max_position_embeddings": 64,
    "pos_emb": "rotary",
    "make_vocab_size_divisible_by": 8,
}
KEYS: dict[str, dict[str, Any]] = {
    "gpt_neox parallel untied": {
        **_SIZES,
        "intermediate_size": 96,
        "rotary_pct": 0.5,
        "gpt_j_residual": True,
        "no_weight_tying": True,
    },
    "gpt_neox sequential tied": {
        **_SIZES,
        "intermediate_size": 96,
        "bias_gelu_fusion": True,
        "no_weight_tying": False,
    },
    "llama 8/4": {
        **_SIZES,
        "intermediate_size": 144,  # two thirds of it for both halves
        "num_kv_heads": 4,
        "activation": "swiglu",
        "norm": "rmsnorm",
        "rms_norm_epsilon": 1.0e-6,
        "rotary_emb_base": 5000,
        "rotary_scaling": "llama3",
        "rotary_scaling_factor": 4.0,
        "rotary_original_positions": 16,
        "use_bias_in_attn_linear": False,
        "use_bias_in_mlp": False,
        "no_weight_tying": True,
    },
}
STEP = 5


@dataclass(frozen=True)
class Form:
    """How a folder is written.

    Attributes:
        size: model-parallel ranks.
        layers: a file for each layer, as a pipeline writes it.
        old: the MLP's names of older releases.
        dtype: of the weights.
        objects: objects of other programs lie beside the weights, one of which would run code.
        configs: the run's configuration lies in the folder.
    """

    size: int = 2
    layers: bool = False
    old: bool = False
    dtype: torch.dtype = torch.float32
    objects: bool = False
    configs: bool = True


class Trap:
    """Makes a folder where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def write_neox(root: Path, case: str, form: Form) -> nn.Module:
    """Write ``<root>/global_step5`` and ``latest``, and return the model that is in it, in fp32."""
    model = make_model(case)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(form.dtype))
    folder = root / f"global_step{STEP}"
    folder.mkdir(parents=True)
    (root / "latest").write_text(folder.name)
    whole = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    write_layers = _llama if case.startswith("llama") else _gpt_neox
    keys = KEYS[case]
    for rank in range(form.size):
        layers = write_layers(whole, keys, form, rank)
        layers = {
            number: OrderedDict((name, part.to(form.dtype).clone()) for name, part in layer.items())
            for number, layer in layers.items()
        }
        if form.layers:
            for number, layer in layers.items():
                torch.save(layer, folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")
        module = OrderedDict(
            (f"sequential.{number}.{name}", tensor)
            for number, layer in layers.items()
            for name, tensor in layer.items()
        )
        content = {"module": None if form.layers else module, **_beside(keys, form, root)}
        torch.save(content, folder / f"mp_rank_{rank:02d}_model_states.pt")
    if form.configs:
        (folder / "configs").mkdir()
        text = yaml.safe_dump({key.replace("_", "-"): value for key, value in keys.items()})
        (folder / "configs" / "model.yml").write_text(text)
    return model


def _beside(keys: dict[str, Any], form: Form, root: Path) -> dict[str, Any]:
    args = {
        "num_layers": keys["num_layers"],
        "hidden_size": keys["hidden_size"],
        "num_attention_heads": keys["num_attention_heads"],
        "make_vocab_size_divisible_by": keys["make_vocab_size_divisible_by"],
        "model_parallel_size": form.size,
        "tokenizer_type": "HFTokenizer",
    }
    content: dict[str, Any] = {
        "optimizer": None,
        "lr_scheduler": {"num_iters": STEP},
        "iteration": STEP,
        "args": args,
        "torch_rng_state": torch.get_rng_state(),
    }
    if form.objects:
        content["args"] = argparse.Namespace(**args)
        content["optimizer"] = {"loss_scaler": Trap(root / "sprung"), "kept": [torch.ones(2)]}
    return content


def _rows(tensor: Tensor, form: Form, rank: int) -> Tensor:
    return tensor.chunk(form.size)[rank]


def _columns(tensor: Tensor, form: Form, rank: int) -> Tensor:
    return tensor.chunk(form.size, dim=1)[rank]


def _vocabulary(tensor: Tensor, keys: dict[str, Any], form: Form, rank: int) -> Tensor:
    """Rows up to the next multiple."""
    multiple = keys["make_vocab_size_divisible_by"] * form.size
    padding = torch.zeros(-VOCAB % multiple, tensor.size(1))
    return _rows(torch.cat((tensor, padding)), form, rank)


def _under(prefix: str, whole: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in whole.items()
        if name.startswith(prefix)
    }


def _gpt_neox(
    whole: dict[str, Tensor], keys: dict[str, Any], form: Form, rank: int
) -> dict[int, dict[str, Tensor]]:
    first, second = ("dense_h_to_4h", "dense_4h_to_h") if form.old else ("linear1", "linear2")
    # Each rank adds its bias before the ranks' outputs are summed.
    share = 1 / form.size if keys.get("gpt_j_residual") else 1
    layers = {0: {"word_embeddings.weight": whole["gpt_neox.embed_in.weight"]}}
    for number in range(keys["num_layers"]):
        of = _under(f"gpt_neox.layers.{number}.", whole)
        layers[2 + number] = {
            **{name: tensor for name, tensor in of.items() if "layernorm" in name},
            "attention.query_key_value.weight": _rows(
                of["attention.query_key_value.weight"], form, rank
            ),
            "attention.query_key_value.bias": _rows(
                of["attention.query_key_value.bias"], form, rank
            ),
            "attention.rotary_emb.inv_freq": torch.ones(2),
            "attention.dense.weight": _columns(of["attention.dense.weight"], form, rank),
            "attention.dense.bias": share * of["attention.dense.bias"],
            f"mlp.{first}.weight": _rows(of["mlp.dense_h_to_4h.weight"], form, rank),
            f"mlp.{first}.bias": _rows(of["mlp.dense_h_to_4h.bias"], form, rank),
            f"mlp.{second}.weight": _columns(of["mlp.dense_4h_to_h.weight"], form, rank),
            f"mlp.{second}.bias": share * of["mlp.dense_4h_to_h.bias"],
        }
    final = {
        f"norm.{kind}": whole[f"gpt_neox.final_layer_norm.{kind}"] for kind in ("weight", "bias")
    }
    head = whole.get("lm_head.weight", whole.get("embed_out.weight"))
    return _with_ends(layers, final, head, keys, form, rank)


def _llama(
    whole: dict[str, Tensor], keys: dict[str, Any], form: Form, rank: int
) -> dict[int, dict[str, Tensor]]:
    layers = {0: {"word_embeddings.weight": whole["model.embed_tokens.weight"]}}
    for number in range(keys["num_layers"]):
        of = _under(f"model.layers.{number}.", whole)
        value, gate = (_rows(of[f"mlp.{kind}_proj.weight"], form, rank) for kind in ("up", "gate"))
        down = _columns(of["mlp.down_proj.weight"], form, rank)
        mlp = (
            {"mlp.w1.weight": gate, "mlp.w2.weight": down, "mlp.w3.weight": value}
            if form.old
            else {"mlp.linear1.weight": torch.cat((value, gate)), "mlp.linear2.weight": down}
        )
        parts = [_rows(of[f"self_attn.{kind}_proj.weight"], form, rank) for kind in "qkv"]
        layers[2 + number] = {
            "input_layernorm.scale": of["input_layernorm.weight"],
            "attention.query_key_value.weight": torch.cat(parts),
            "attention.dense.weight": _columns(of["self_attn.o_proj.weight"], form, rank),
            "post_attention_layernorm.scale": of["post_attention_layernorm.weight"],
            **mlp,
        }
    final = {"norm.scale": whole["model.norm.weight"]}
    return _with_ends(layers, final, whole["lm_head.weight"], keys, form, rank)


def _with_ends(
    layers: dict[int, dict[str, Tensor]],
    final: dict[str, Tensor],
    head: Tensor | None,
    keys: dict[str, Any],
    form: Form,
    rank: int,
) -> dict[int, dict[str, Tensor]]:
    table = layers[0]["word_embeddings.weight"]
    layers[0]["word_embeddings.weight"] = _vocabulary(table, keys, form, rank)
    layers[keys["num_layers"] + 3] = final
    if keys["no_weight_tying"]:
        assert head is not None
        layers[keys["num_layers"] + 4] = {
            "final_linear.weight": _vocabulary(head, keys, form, rank)
        }
    return layers
