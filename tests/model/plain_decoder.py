"""The decoder by its formulas, one token pair at a time where it helps: slow, and written from nothing
but the definitions, to compare the model with.

Shapes: b sequences, s tokens, h hidden, n query heads, k key/value heads, d features of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from megatron.neox_arguments.sections import ModelArgs

Weights = Mapping[str, Tensor]

GATES = {
    "geglu": "gelu",
    "reglu": "relu",
    "swiglu": "silu",
    "bilinear": "nothing",
    "glu": "sigmoid",
}


def activation(name: str, x: Tensor, *, tanh_form: bool) -> Tensor:
    if name == "gelu" and tanh_form:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return {
        "gelu": lambda: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
        "relu": lambda: x * (x > 0),
        "softsign": lambda: x / (1 + x.abs()),
        "silu": lambda: x / (1 + torch.exp(-x)),
        "swish": lambda: x / (1 + torch.exp(-x)),
        "mish": lambda: x * torch.tanh(torch.log1p(torch.exp(x))),
        "nothing": lambda: x,
        "sigmoid": lambda: 1 / (1 + torch.exp(-x)),
    }[name]()


def norm(model: ModelArgs, weights: Weights, name: str, x: Tensor, dims: int = 1) -> Tensor:
    """The norm of parameters ``name``.* over the last ``dims`` dimensions of ``x``."""
    over = tuple(range(-dims, 0))
    eps, offset = model.norm_epsilon, model.norm_weight_offset
    if model.norm == "scalenorm":
        return weights[f"{name}.g"] * x / x.square().sum(over, keepdim=True).sqrt().clamp(min=eps)
    if model.norm == "rmsnorm":
        gain = weights[f"{name}.scale"] if f"{name}.scale" in weights else weights[f"{name}.weight"]
        return x / (x.square().mean(over, keepdim=True) + eps).sqrt() * (offset + gain)
    centred = x - x.mean(over, keepdim=True)
    out = centred / (centred.square().mean(over, keepdim=True) + eps).sqrt()
    if model.norm == "non_parametric_layernorm":
        return out
    out = out * (offset + weights[f"{name}.weight"])
    return out + weights.get(f"{name}.bias", torch.zeros(()))


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(()))


def heads(model: ModelArgs, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[b, s, rows] -> three of [b, s, n, d], each key/value head repeated for the queries it serves."""
    n, k, d = model.num_attention_heads, model.kv_heads, model.head_width
    if n == k:
        split = fused.view(*fused.shape[:2], n, 3 * d)
        return split[..., :d], split[..., d : 2 * d], split[..., 2 * d :]
    query, key, value = fused.split([n * d, k * d, k * d], dim=-1)
    serves = [head * k // n for head in range(n)]
    query, key, value = (x.view(*x.shape[:2], -1, d) for x in (query, key, value))
    return query, key[:, :, serves], value[:, :, serves]


def rotated(model: ModelArgs, x: Tensor, places: Tensor) -> Tensor:
    """[b, s, n, d], the first features of each head turned by the angles of ``places`` [b, s]."""
    r = model.rotary_dim
    out = x.clone()
    for i in range(r // 2):
        angle = places.float() * model.rotary_emb_base ** (-2 * i / r)
        cos, sin = angle.cos()[..., None], angle.sin()[..., None]
        out[..., i] = x[..., i] * cos - x[..., i + r // 2] * sin
        out[..., i + r // 2] = x[..., i + r // 2] * cos + x[..., i] * sin
    return out


def attention(
    model: ModelArgs, weights: Weights, x: Tensor, places: Tensor, window: int | None
) -> Tensor:
    query, key, value = heads(model, linear(weights, "attention.query_key_value", x))
    if model.qk_norm_kind == "neox":
        query = norm(model, weights, "attention.qk_layernorm", query, dims=2)
        key = norm(model, weights, "attention.qk_layernorm", key, dims=2)
    elif model.qk_norm_kind == "head":
        query = norm(model, weights, "attention.q_norm", query)
        key = norm(model, weights, "attention.k_norm", key)
    if model.pos_emb == "rotary":
        query, key = rotated(model, query, places), rotated(model, key, places)
    scores = torch.einsum("bind,bjnd->bnij", query, key) / math.sqrt(model.head_width)
    i, j = torch.arange(x.size(1))[:, None], torch.arange(x.size(1))[None]
    if model.pos_emb == "alibi":
        # The first of the paper's two rules; six heads take every other slope of eight.
        slopes = {4: [0.25, 0.0625, 2**-6, 2**-8], 6: [0.25, 0.0625, 2**-6, 2**-8, 0.5, 0.125]}
        fall = torch.tensor(slopes[model.num_attention_heads])[:, None, None]
        scores = scores - fall * (i - j)
    if model.pos_emb == "rpe":
        for back in range(x.size(1)):
            bucket = bucket_of(back, model.rpe_num_buckets, model.rpe_max_distance)
            added = weights["attention.rpe.weight"][bucket] * math.sqrt(model.head_width)
            scores = scores + (i - j == back) * added[:, None, None]
    scores = scores.masked_fill(j > i, -torch.inf)
    if window is not None:
        scores = scores.masked_fill(j <= i - window, -torch.inf)
    out = torch.einsum("bnij,bjnd->bind", scores.softmax(-1), value)
    return linear(weights, "attention.dense", out.flatten(2))


def bucket_of(back: int, buckets: int, max_distance: int) -> int:
    """T5's: one for each near distance, the logarithm of far ones in even steps."""
    near = buckets // 2
    if back < near:
        return back
    steps = (buckets - near) * math.log(back / near) / math.log(max_distance / near)
    return min(near + math.floor(steps), buckets - 1)


def mlp(model: ModelArgs, weights: Weights, x: Tensor) -> Tensor:
    fused = model.bias_gelu_fusion and model.activation == "gelu"
    tanh_form = model.gelu_form == "tanh" or (model.gelu_form is None and fused)
    x = linear(weights, "mlp.linear1", x)
    if model.activation in GATES:
        value, gate = x[..., : x.size(-1) // 2], x[..., x.size(-1) // 2 :]
        x = activation(GATES[model.activation], gate, tanh_form=tanh_form) * value
    else:
        x = activation(model.activation, x, tanh_form=tanh_form)
    return linear(weights, "mlp.linear2", x)


def block(
    model: ModelArgs, weights: Weights, x: Tensor, places: Tensor, window: int | None
) -> Tensor:
    attended = attention(model, weights, norm(model, weights, "input_layernorm", x), places, window)
    if model.gpt_j_tied:
        return x + attended + mlp(model, weights, norm(model, weights, "input_layernorm", x))
    if model.gpt_j_residual:
        return (
            x + attended + mlp(model, weights, norm(model, weights, "post_attention_layernorm", x))
        )
    x = x + attended
    return x + mlp(model, weights, norm(model, weights, "post_attention_layernorm", x))


def logits(model: ModelArgs, weights: Weights, tokens: Tensor) -> Tensor:
    """[b, s] -> [b, s, v], from the weights of a :class:`GPT2Model` by their names in it."""
    last = model.num_layers + 4
    places = torch.arange(tokens.size(1)).expand(tokens.shape)
    table = weights["sequential.0.word_embeddings.weight"]
    x = table[tokens] * model.embedding_scale
    if model.pos_emb == "learned":
        x = (
            x
            + weights["sequential.0.position_embeddings.weight"][places + model.opt_pos_emb_offset]
        )
    if model.pos_emb == "sinusoidal":
        half = model.hidden_size // 2
        angles = [places / 10000 ** (i / half) for i in range(half)]
        x = x + torch.stack([a.sin() for a in angles] + [a.cos() for a in angles], dim=-1)
    distances = {
        name: w for name, w in of_layer(weights, 2).items() if name == "attention.rpe.weight"
    }
    for number in range(model.num_layers):
        kinds = [kind for names, times in model.attention_config or () for kind in names * times]
        sees_all = "local" in kinds and kinds[number] != "local"
        window = None if sees_all else model.sliding_window_width
        x = block(model, of_layer(weights, 2 + number) | distances, x, places, window)
    x = norm(model, of_layer(weights, last - 1), "norm", x)
    return (
        x
        @ (weights[f"sequential.{last}.final_linear.weight"] if model.no_weight_tying else table).T
    )


def of_layer(weights: Weights, number: int) -> dict[str, Tensor]:
    prefix = f"sequential.{number}."
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
