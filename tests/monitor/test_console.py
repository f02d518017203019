"""The text that a person reads, by its letters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from megatron.monitor.console import (
    BatchFacts,
    Interval,
    LayoutFacts,
    ModelFacts,
    RunFacts,
    SplitFacts,
    _model_text,
    evaluation_line,
    facts_block,
    interval_line,
)
from megatron.monitor.estimates import MemoryEstimate
from megatron.monitor.from_arguments import model_facts
from megatron.monitor.units import bytes_text, count_text, duration_text, float_text
from tests.support.models import tiny_args, tiny_model

INTERVAL = Interval(
    step=120,
    total_steps=1431,
    loss=3.21449,
    learning_rate=3.9e-3,
    grad_norm=0.9215,
    tokens_per_sec=12_345.6,
    samples_per_sec=96.45,
    iteration_time=0.0841,
    data_wait=0.0009,
    memory_bytes=0.61 * 2**30,
    consumed_samples=11_448,
    consumed_tokens=1_465_344,
    eta=110.4,
)


def test_the_line_of_an_interval() -> None:
    assert interval_line(INTERVAL) == (
        "step  120/1431 | loss 3.2145 | lr 3.90e-03 | grad norm 0.92 | 12.3k tok/s | "
        "96.5 samples/s | 84 ms/step, data 1% | mem 625 MiB | 11,448 samples, 1.47M tokens | "
        "ETA 1m50s"
    )


def test_what_does_not_exist_is_left_out_of_the_line() -> None:
    last = replace(INTERVAL, step=1431, grad_norm=None, eta=0.0, mfu=0.4125)
    line = interval_line(last)
    assert line.startswith("step 1431/1431 | loss 3.2145 | lr 3.90e-03 | 12.3k tok/s | ")
    assert "| MFU 41.2% |" in line
    assert line.endswith("1.47M tokens")


def test_the_line_of_an_interval_in_fp16() -> None:
    line = interval_line(replace(INTERVAL, loss_scale=65536.0))
    assert "| grad norm 0.92 | loss scale 65,536 | 12.3k tok/s |" in line
    line = interval_line(replace(INTERVAL, loss_scale=0.5, skipped=3, grad_norm=float("inf")))
    assert "| grad norm inf | loss scale 0.5 | 3 skipped | 12.3k tok/s |" in line


def test_the_line_of_an_evaluation() -> None:
    assert evaluation_line(500, 1431, "validation", 1.8123, 6.1246, 160, 0.91) == (
        "step  500/1431 | validation loss 1.8123 | perplexity 6.12 | 160 samples in 910 ms"
    )


def test_the_block_of_facts() -> None:
    facts = RunFacts(
        model=ModelFacts(
            num_layers=4,
            hidden_size=128,
            num_heads=4,
            num_kv_heads=2,
            mlp_width=512,
            seq_length=128,
            norm="layernorm",
            positions="rotary",
            activation="gelu",
            parameters=1_055_616,
            embedding_parameters=262_144,
            vocab_size=2_040,
            padded_vocab_size=2_048,
            asked_mlp_width=512,
        ),
        layout=LayoutFacts(
            world_size=2,
            num_nodes=1,
            data_parallel_size=2,
            pipe_parallel_size=0,
            context_parallel_size=1,
            model_parallel_size=1,
            sequence_parallel=False,
            device="cpu",
            backend="gloo",
            precision="fp32",
            zero_stage=1,
        ),
        batch=BatchFacts(8, 4, 1, 2),
        splits=[
            SplitFacts("train", 40, 1_234_567, 9_644, 11_448),
            SplitFacts("validation", 4, 100_000, 781, 0),
        ],
        train_iters=1431,
        memory=MemoryEstimate(4_222_464, 4_222_464, 6_333_696, 12_667_392, 30 * 2**20),
    )
    assert facts_block(facts).splitlines() == [
        "this run",
        "  model       4 layers, 128 wide, 4 heads (2 for keys and values), MLP 512, sequence 128; "
        "layernorm, rotary positions, gelu",
        "              1,055,616 parameters, 793k of them outside the embeddings; "
        "vocabulary 2,040 (padded to 2,048)",
        "  layout      2 ranks on 1 node = data 2 × model 1; cpu, gloo, fp32, ZeRO stage 1",
        "  batch       8 samples a step = 4 per rank × 1 accumulation × 2 data; 1,024 tokens a step",
        "  train       40 documents; an epoch has 1,234,567 tokens, 9,644 samples; "
        "1,431 steps take 11,448 samples, 1.19 epochs",
        "  validation  4 documents; an epoch has 100,000 tokens, 781 samples; "
        "it takes 0 samples, 0.00 epochs",
        "  memory      about 56.2 MiB a rank beside the program itself: weights 4.03 MiB, "
        "gradients 4.03 MiB, optimizer 6.04 MiB, buffers 12.1 MiB, activations 30.0 MiB",
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "MLP 128"),
        ({"mlp_multiple_of": 24}, "MLP 144 (128, up to a multiple of 48)"),
        (
            {"activation": "swiglu", "intermediate_size": 100},
            "MLP 33 (value and gate: 2/3 of 100, half each)",
        ),
        (
            {"activation": "geglu", "intermediate_size": 100, "mlp_multiple_of": 8},
            "MLP 40 (value and gate: 2/3 of 100, half each, multiples of 8)",
        ),
    ],
)
def test_the_real_width_of_the_mlp_is_told(changes: dict[str, Any], text: str) -> None:
    """That of the second layer's input, as the model's own layer has it."""
    facts = model_facts(
        tiny_args(**changes),
        parameters=2,
        embedding_parameters=1,
        vocab_size=64,
        padded_vocab_size=64,
    )
    assert f", {text}, sequence 16; " in _model_text(facts)
    mlp = tiny_model(**changes).sequential[2].mlp
    assert text.split()[1] == str(mlp.linear2.weight.size(1))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0841, "84 ms"),
        (0.99951, "1.00 s"),
        (1.2351, "1.24 s"),
        (9.996, "10 s"),
        (59.4, "59 s"),
        (59.6, "1m00s"),
        (110.4, "1m50s"),
        (3599.6, "1h00m"),
        (7500, "2h05m"),
        (86_399, "1d00h"),
        (273_600, "3d04h"),
        (float("inf"), "?"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (950, "950"),
        (999.6, "1.00k"),
        (12_345, "12.3k"),
        (999_600, "1.00M"),
        (123_456_789, "123M"),
        (20_554_567_680, "20.6B"),
        (3.1e12, "3.10T"),
    ],
)
def test_counts(number: float, text: str) -> None:
    assert count_text(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(512, "512 B"), (1024, "1.00 KiB"), (1023.9 * 2**20, "1.00 GiB"), (139 * 2**30, "139 GiB")],
)
def test_bytes(number: float, text: str) -> None:
    assert bytes_text(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.00"),
        (0.9215, "0.92"),
        (9.996, "10.0"),
        (99.96, "100"),
        (4567.8, "4568"),
        (3.14e-5, "3.1e-05"),
        (1.2e7, "1.2e+07"),
        (float("inf"), "inf"),
    ],
)
def test_floats(number: float, text: str) -> None:
    assert float_text(number) == text
