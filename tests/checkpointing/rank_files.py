"""Checkpoints of ZeRO 3 made by hand, in the form of DeepSpeed 0.19's files, with numbers that are known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from megatron.checkpointing.manifest import MANIFEST_NAME, EngineFacts
from tests.checkpointing.folders_on_disk import make_manifest

STATES = ("fp32", "exp_avg", "exp_avg_sq")
Whole = Mapping[str, Mapping[str, Tensor]]


def random_states(hidden: int, layers: int, vocab: int = 64) -> Whole:
    """Each state of each parameter of a model with tied embeddings, by state and name."""
    shapes: dict[str, tuple[int, ...]] = {"0.word_embeddings.weight": (vocab, hidden)}
    for number in range(2, 2 + layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes |= {f"{number}.{norm}.{kind}": (hidden,) for kind in ("weight", "bias")}
        for name, rows, columns in (
            ("attention.query_key_value", 3, 1),
            ("attention.dense", 1, 1),
            ("mlp.linear1", 4, 1),
            ("mlp.linear2", 1, 4),
        ):
            shapes[f"{number}.{name}.weight"] = (rows * hidden, columns * hidden)
            shapes[f"{number}.{name}.bias"] = (rows * hidden,)
    shapes |= {f"{layers + 3}.norm.{kind}": (hidden,) for kind in ("weight", "bias")}
    generator = torch.Generator().manual_seed(1)
    return {
        state: {
            f"sequential.{name}": torch.rand(shape, generator=generator)
            for name, shape in shapes.items()
        }
        for state in STATES
    }


def write_partitioned(root: Path, whole: Whole, *, ranks: int, layers: int, step: int = 4) -> Path:
    """What ``ranks`` data-parallel ranks write under ZeRO 3. Returns the checkpoint's folder."""
    folder = root / f"global_step{step}"
    (folder / "configs").mkdir(parents=True)
    values = whole["fp32"]
    groups = [
        {name: t.shape for name, t in values.items() if t.dim() >= 2},
        {name: t.shape for name, t in values.items() if t.dim() < 2},
    ]
    facts = {"param_shapes": groups, "skipped_steps": 1, "global_samples": 32, "module": {}}
    for rank in range(ranks):
        flat = {
            state: [_cuts([whole[state][name] for name in group], rank, ranks) for group in groups]
            for state in STATES
        }
        states = {
            number: {
                "step": torch.tensor(3.0),
                "exp_avg": flat["exp_avg"][number],
                "exp_avg_sq": flat["exp_avg_sq"][number],
            }
            for number in range(2)
        }
        content = {
            "zero_stage": 3,
            "fp32_flat_groups": flat["fp32"],
            "optimizer_state_dict": {"state": states, "param_groups": []},
        }
        prefix = f"zero_pp_rank_{rank}_mp_rank_00"
        torch.save({"optimizer_state_dict": content}, folder / f"{prefix}_optim_states.pt")
        torch.save(facts, folder / f"{prefix}_model_states.pt")
    hidden = values["sequential.0.word_embeddings.weight"].shape[1]
    config = {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": 2}
    config |= {"seq_length": 8, "max_position_embeddings": 8, "no_weight_tying": False}
    (folder / "configs" / "effective_config.json").write_text(json.dumps(config))
    sizes = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest = make_manifest(
        step, engine=EngineFacts(ranks, ranks, 1, 3, "fp32"), disks=[sizes], layout={}
    )
    (folder / MANIFEST_NAME).write_bytes(manifest.to_json())
    (root / "latest").write_text(folder.name)
    return folder


def _cuts(tensors: list[Tensor], rank: int, ranks: int) -> Tensor:
    """The rank's even cut of each, zeros behind the last number, end to end."""
    cuts = []
    for tensor in tensors:
        length = (tensor.numel() + ranks - 1) // ranks
        padded = torch.zeros(length * ranks)
        padded[: tensor.numel()] = tensor.flatten()
        cuts.append(padded[rank * length : (rank + 1) * length])
    return torch.cat(cuts)
