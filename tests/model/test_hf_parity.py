"""Logits and gradients equal those of transformers' models with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from megatron.model import GPT2Model
from tests.support.models import shake, tiny_model

VOCAB, LAYERS = 64, 2


def neox_reference(*, parallel: bool, rotary_pct: float, act: str = "gelu") -> nn.Module:
    config = transformers.GPTNeoXConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_act=act,
        rotary_pct=rotary_pct,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": rotary_pct,
        },
        max_position_embeddings=16,
        use_parallel_residual=parallel,
        layer_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    return transformers.GPTNeoXForCausalLM(config).eval()


def neox_name(name: str) -> str:
    """The reference's name of our parameter."""
    number, _, rest = name.removeprefix("sequential.").partition(".")
    rest = rest.replace("linear1", "dense_h_to_4h").replace("linear2", "dense_4h_to_h")
    if rest == "word_embeddings.weight":
        return "gpt_neox.embed_in.weight"
    if rest == "final_linear.weight":
        return "lm_head.weight"
    if rest.startswith("norm."):
        return f"gpt_neox.final_layer_norm.{rest.removeprefix('norm.')}"
    return f"gpt_neox.layers.{int(number) - 2}.{rest}"


def load(theirs: nn.Module, renamed: dict[str, Tensor]) -> None:
    report = theirs.load_state_dict(renamed, strict=False)
    assert not report.unexpected_keys
    # A tied head is listed as missing, and filled from the embedding.
    assert set(report.missing_keys) <= {"lm_head.weight"}


def assert_same(ours: GPT2Model, theirs: nn.Module) -> None:
    """Equal logits; leaves the gradients of one and the same weighted sum of them behind."""
    tokens = torch.randint(0, VOCAB, (3, 16), generator=torch.Generator().manual_seed(0))
    mine, reference = ours(tokens), theirs(tokens).logits
    # Logits that are all but zero would agree whatever the model computed.
    assert reference.std() > 0.5
    assert (mine - reference).abs().max() < 1e-5
    weights = torch.linspace(-1, 1, mine.numel()).view_as(mine)
    (mine * weights).mean().backward()
    (reference * weights).mean().backward()


def assert_same_gradient(ours: GPT2Model, name: str, theirs: nn.Module, their_name: str) -> None:
    mine, reference = ours.get_parameter(name).grad, theirs.get_parameter(their_name).grad
    assert mine is not None
    assert reference is not None
    torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rotary_pct", [0.25, 1.0])
@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "sequential"])
def test_gpt_neox(parallel: bool, rotary_pct: float) -> None:
    ours = tiny_model(VOCAB, gpt_j_residual=parallel, rotary_pct=rotary_pct, no_weight_tying=True)
    shake(ours)
    theirs = neox_reference(parallel=parallel, rotary_pct=rotary_pct)
    load(theirs, {neox_name(name): tensor for name, tensor in ours.state_dict().items()})
    assert_same(ours, theirs)
    for name, _ in ours.named_parameters():
        assert_same_gradient(ours, name, theirs, neox_name(name))


def test_tanh_gelu_is_bias_gelu_fusion() -> None:
    ours = tiny_model(VOCAB, gpt_j_residual=True, bias_gelu_fusion=True, no_weight_tying=True)
    shake(ours)
    theirs = neox_reference(parallel=True, rotary_pct=1.0, act="gelu_pytorch_tanh")
    load(theirs, {neox_name(name): tensor for name, tensor in ours.state_dict().items()})
    assert_same(ours, theirs)


def copy_to_llama(ours: GPT2Model, theirs: nn.Module, heads: int, kv_heads: int) -> None:
    renamed: dict[str, Tensor] = {}
    for name, tensor in ours.state_dict().items():
        number, _, rest = name.removeprefix("sequential.").partition(".")
        layer = f"model.layers.{int(number) - 2}"
        if int(number) == 0:
            renamed["model.embed_tokens.weight"] = tensor
        elif int(number) == LAYERS + 3:
            renamed["model.norm.weight"] = tensor
        elif int(number) == LAYERS + 4:
            renamed["lm_head.weight"] = tensor
        elif rest == "attention.query_key_value.weight":
            if heads == kv_heads:
                q, k, v = tensor.view(heads, 3, 8, 32).unbind(1)
            else:
                q, k, v = tensor.view(heads + 2 * kv_heads, 8, 32).split(
                    [heads, kv_heads, kv_heads]
                )
            for letter, part in zip("qkv", (q, k, v), strict=True):
                renamed[f"{layer}.self_attn.{letter}_proj.weight"] = part.reshape(-1, 32)
        elif rest == "mlp.linear1.weight":
            up, gate = tensor.chunk(2)
            renamed[f"{layer}.mlp.up_proj.weight"] = up
            renamed[f"{layer}.mlp.gate_proj.weight"] = gate
        else:
            place = {
                "attention.dense.weight": "self_attn.o_proj.weight",
                "mlp.linear2.weight": "mlp.down_proj.weight",
                "input_layernorm.scale": "input_layernorm.weight",
                "post_attention_layernorm.scale": "post_attention_layernorm.weight",
            }[rest]
            renamed[f"{layer}.{place}"] = tensor
    load(theirs, renamed)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_llama(kv_heads: int, tied: bool) -> None:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        intermediate_size=48,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        max_position_embeddings=16,
        tie_word_embeddings=tied,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    ours = tiny_model(
        VOCAB,
        norm="rmsnorm",
        rms_norm_epsilon=1e-6,
        activation="swiglu",
        # GPT-NeoX's rule: two thirds of this, for both halves: 2 x 48.
        intermediate_size=144,
        num_kv_heads=kv_heads,
        use_bias_in_attn_linear=False,
        use_bias_in_mlp=False,
        rotary_emb_base=500,
        no_weight_tying=not tied,
    )
    shake(ours)
    copy_to_llama(ours, theirs, 4, kv_heads)
    assert_same(ours, theirs)
    for ours_name, their_name in {
        "sequential.0.word_embeddings.weight": "model.embed_tokens.weight",
        "sequential.2.attention.dense.weight": "model.layers.0.self_attn.o_proj.weight",
        "sequential.3.input_layernorm.scale": "model.layers.1.input_layernorm.weight",
    }.items():
        assert_same_gradient(ours, ours_name, theirs, their_name)


def test_learned_positions_as_gpt2() -> None:
    """GPT-2 keeps [q; k; v] of all heads together and its linear weights transposed."""
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=LAYERS, n_head=4, n_positions=16
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    ours = tiny_model(VOCAB, pos_emb="learned", bias_gelu_fusion=True)
    shake(ours)
    renamed = {}
    for name, tensor in ours.state_dict().items():
        number, _, rest = name.removeprefix("sequential.").partition(".")
        module, _, kind = rest.rpartition(".")
        if module in ("word_embeddings", "position_embeddings"):
            renamed[f"transformer.{'wte' if module[0] == 'w' else 'wpe'}.weight"] = tensor
            continue
        if module == "norm":
            renamed[f"transformer.ln_f.{kind}"] = tensor
            continue
        if module == "attention.query_key_value":
            tensor = tensor.view(4, 3, 8, -1).transpose(0, 1).reshape(96, -1)
            tensor = tensor if kind == "weight" else tensor.squeeze(1)
        place = {
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "attention.query_key_value": "attn.c_attn",
            "attention.dense": "attn.c_proj",
            "mlp.linear1": "mlp.c_fc",
            "mlp.linear2": "mlp.c_proj",
        }[module]
        renamed[f"transformer.h.{int(number) - 2}.{place}.{kind}"] = (
            tensor.t() if tensor.dim() == 2 else tensor
        )
    load(theirs, renamed)
    assert_same(ours, theirs)
    assert_same_gradient(
        ours, "sequential.0.position_embeddings.weight", theirs, "transformer.wpe.weight"
    )


def copy_with_heads(ours: GPT2Model, theirs: nn.Module) -> None:
    """Our weights in the names that Llama, Qwen, Gemma and Mistral share."""
    args = ours.model_args
    n, k, d = args.num_attention_heads, args.kv_heads, args.head_width
    renamed: dict[str, Tensor] = {}
    for name, tensor in ours.state_dict().items():
        number, _, rest = name.removeprefix("sequential.").partition(".")
        module, _, kind = rest.rpartition(".")
        layer = f"model.layers.{int(number) - 2}"
        if module == "attention.query_key_value":
            by_head = tensor.view(n + 2 * k, d, *tensor.shape[1:])
            for letter, part in zip("qkv", by_head.split([n, k, k]), strict=True):
                renamed[f"{layer}.self_attn.{letter}_proj.{kind}"] = part.flatten(0, 1)
        elif module == "mlp.linear1":
            up, gate = tensor.chunk(2)
            renamed[f"{layer}.mlp.up_proj.weight"] = up
            renamed[f"{layer}.mlp.gate_proj.weight"] = gate
        else:
            place = {
                "word_embeddings": "model.embed_tokens",
                "norm": "model.norm",
                "final_linear": "lm_head",
                "attention.dense": f"{layer}.self_attn.o_proj",
                "attention.q_norm": f"{layer}.self_attn.q_norm",
                "attention.k_norm": f"{layer}.self_attn.k_norm",
                "mlp.linear2": f"{layer}.mlp.down_proj",
                "input_layernorm": f"{layer}.input_layernorm",
                "post_attention_layernorm": f"{layer}.post_attention_layernorm",
            }[module]
            renamed[f"{place}.weight"] = tensor
    load(theirs, renamed)


# What the configurations of these families have in common, on either side.
THEIRS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
OURS: dict[str, Any] = {
    "norm": "rmsnorm",
    "rms_norm_epsilon": 1e-6,
    "activation": "swiglu",
    "intermediate_size": 144,
    "num_kv_heads": 2,
    "use_bias_in_attn_linear": False,
    "use_bias_in_mlp": False,
    "rotary_emb_base": 500,
}


def qwen2() -> tuple[GPT2Model, nn.Module]:
    theirs = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**THEIRS))
    return tiny_model(VOCAB, **OURS, use_bias_in_qkv=True, no_weight_tying=True), theirs


def qwen3() -> tuple[GPT2Model, nn.Module]:
    theirs = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**THEIRS, head_dim=12))
    return tiny_model(VOCAB, **OURS, qk_norm="head", head_dim=12, no_weight_tying=True), theirs


def gemma() -> tuple[GPT2Model, nn.Module]:
    """Its norms multiply by 1 + weight, its embeddings enter scaled, its MLP has the tanh form of gelu."""
    theirs = transformers.GemmaForCausalLM(
        transformers.GemmaConfig(
            **THEIRS, head_dim=16, pad_token_id=None, hidden_activation="gelu_pytorch_tanh"
        )
    )
    ours = tiny_model(
        VOCAB,
        **{**OURS, "activation": "geglu"},
        gelu_form="tanh",
        head_dim=16,
        norm_weight_offset=1.0,
        embedding_scale=32**0.5,
    )
    return ours, theirs


def mistral() -> tuple[GPT2Model, nn.Module]:
    config = transformers.MistralConfig(**THEIRS, head_dim=8, sliding_window=5)
    theirs = transformers.MistralForCausalLM(config)
    return tiny_model(VOCAB, **OURS, sliding_window_width=5, no_weight_tying=True), theirs


@pytest.mark.parametrize("family", [qwen2, qwen3, gemma, mistral])
def test_families_with_heads_of_their_own(
    family: Callable[[], tuple[GPT2Model, nn.Module]],
) -> None:
    ours, theirs = family()
    shake(ours)
    copy_with_heads(ours, theirs.eval())
    assert_same(ours, theirs)
    for our_name, their_name in {
        "sequential.0.word_embeddings.weight": "model.embed_tokens.weight",
        "sequential.2.attention.dense.weight": "model.layers.0.self_attn.o_proj.weight",
        "sequential.3.input_layernorm.scale": "model.layers.1.input_layernorm.weight",
        "sequential.3.mlp.linear2.weight": "model.layers.1.mlp.down_proj.weight",
    }.items():
        assert_same_gradient(ours, our_name, theirs, their_name)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"rotary_scaling": "linear"}, {"rope_type": "linear"}),
        (
            {"rotary_scaling": "llama3", "rotary_original_positions": 64},
            {
                "rope_type": "llama3",
                "original_max_position_embeddings": 64,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
        ),
        (
            {"rotary_scaling": "yarn", "rotary_original_positions": 64, "rotary_beta_fast": 8.0},
            {"rope_type": "yarn", "original_max_position_embeddings": 64, "beta_fast": 8.0},
        ),
    ],
    ids=["linear", "llama3", "yarn"],
)
def test_scaled_rotations(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Heads 32 wide, so that there are frequencies of all three kinds."""
    rope = {"rope_theta": 500.0, "factor": 4.0, **theirs}
    config = transformers.LlamaConfig(
        **{**THEIRS, "max_position_embeddings": 256, "rope_parameters": rope}, head_dim=32
    )
    model = tiny_model(
        VOCAB,
        **OURS,
        **ours,
        rotary_scaling_factor=4.0,
        max_position_embeddings=256,
        head_dim=32,
        no_weight_tying=True,
    )
    shake(model)
    reference = transformers.LlamaForCausalLM(config).eval()
    copy_with_heads(model, reference)
    assert_same(model, reference)
    for ours_name, their_name in {
        "sequential.0.word_embeddings.weight": "model.embed_tokens.weight",
        "sequential.2.attention.dense.weight": "model.layers.0.self_attn.o_proj.weight",
        "sequential.3.mlp.linear2.weight": "model.layers.1.mlp.down_proj.weight",
    }.items():
        assert_same_gradient(model, ours_name, reference, their_name)
