"""What a person reads while a run goes on: one line per interval, and one block of facts before.

Pure functions from plain values to text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron.monitor.estimates import MemoryEstimate
from megatron.monitor.units import bytes_text, count_text, duration_text, float_text


@dataclass(frozen=True)
class Interval:
    """The numbers of one log line: means over the steps since the line before.

    Attributes:
        step: optimizer steps done, of ``total_steps``.
        loss: mean loss in nats per token.
        learning_rate: that of the last step.
        grad_norm: that of the last step, before clipping; None where there is none.
        tokens_per_sec: over all ranks; ``samples_per_sec`` likewise.
        iteration_time: seconds a step.
        data_wait: seconds of each step spent waiting for data.
        memory_bytes: most memory held by this rank so far.
        consumed_samples: samples read since the beginning of training; ``consumed_tokens`` likewise.
        eta: seconds to the end at this speed.
        mfu: share of the device's peak that the model's arithmetic uses, 0 to 1; None if unknown.
        loss_scale: what the next step's loss is multiplied by in fp16, else None.
        skipped: steps whose gradients overflowed in fp16, and which changed nothing.
    """

    step: int
    total_steps: int
    loss: float
    learning_rate: float
    grad_norm: float | None
    tokens_per_sec: float
    samples_per_sec: float
    iteration_time: float
    data_wait: float
    memory_bytes: float
    consumed_samples: int
    consumed_tokens: int
    eta: float
    mfu: float | None = None
    loss_scale: float | None = None
    skipped: int = 0


def interval_line(interval: Interval) -> str:
    """One line, such as ``step  120/1431 | loss 3.2145 | lr 3.90e-03 | … | ETA 1m50s``."""
    i = interval
    waiting = i.data_wait / i.iteration_time if i.iteration_time > 0 else 0.0
    parts = [
        _step(i.step, i.total_steps),
        f"loss {i.loss:.4f}",
        f"lr {i.learning_rate:.2e}",
        f"grad norm {float_text(i.grad_norm)}" if i.grad_norm is not None else "",
        f"loss scale {i.loss_scale:,.10g}" if i.loss_scale is not None else "",
        f"{i.skipped} skipped" if i.skipped else "",
        f"{count_text(i.tokens_per_sec)} tok/s",
        f"{float_text(i.samples_per_sec)} samples/s",
        f"{duration_text(i.iteration_time)}/step, data {waiting:.0%}",
        f"MFU {i.mfu:.1%}" if i.mfu is not None else "",
        f"mem {bytes_text(i.memory_bytes)}",
        f"{i.consumed_samples:,} samples, {count_text(i.consumed_tokens)} tokens",
        f"ETA {duration_text(i.eta)}" if i.step < i.total_steps else "",
    ]
    return " | ".join(part for part in parts if part)


def evaluation_line(
    step: int,
    total_steps: int,
    split: str,
    loss: float,
    perplexity: float,
    samples: int,
    seconds: float,
) -> str:
    """One line, such as ``step  500/1431 | validation loss 1.8123 | perplexity 6.12 | …``."""
    return " | ".join(
        (
            _step(step, total_steps),
            f"{split} loss {loss:.4f}",
            f"perplexity {float_text(perplexity)}",
            f"{samples:,} samples in {duration_text(seconds)}",
        )
    )


def _step(step: int, total_steps: int) -> str:
    # A constant width keeps the columns under each other.
    return f"step {step:>{len(str(total_steps))}}/{total_steps}"


@dataclass(frozen=True)
class ModelFacts:
    """``vocab_size`` counts the tokenizer's ids, ``padded_vocab_size`` the rows of the embedding.

    ``mlp_width`` is what enters the MLP's second layer; ``asked_mlp_width`` what the configuration asks for
    before two thirds of it are shared by value and gate (``gated``), and before rounding up.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    mlp_width: int
    seq_length: int
    norm: str
    positions: str
    activation: str
    parameters: int
    embedding_parameters: int
    vocab_size: int
    padded_vocab_size: int
    asked_mlp_width: int
    mlp_multiple_of: int = 1
    gated: bool = False


@dataclass(frozen=True)
class LayoutFacts:
    """Sizes of the axes; ``pipe_parallel_size`` 0 is the plain form. ``offloaded`` names what lies in the
    host's memory."""

    world_size: int
    num_nodes: int
    data_parallel_size: int
    pipe_parallel_size: int
    context_parallel_size: int
    model_parallel_size: int
    sequence_parallel: bool
    device: str
    backend: str
    precision: str
    zero_stage: int
    offloaded: tuple[str, ...] = ()


@dataclass(frozen=True)
class BatchFacts:
    """``global_batch_size`` = micro × accumulation × data-parallel ranks, in samples."""

    global_batch_size: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    data_parallel_size: int


@dataclass(frozen=True)
class SplitFacts:
    """One split: what an epoch of it holds and how many samples this run takes from it."""

    name: str
    documents: int
    tokens_per_epoch: int
    samples_per_epoch: int
    samples_wanted: int


@dataclass(frozen=True)
class RunFacts:
    """What a person wants to check before the first step."""

    model: ModelFacts
    layout: LayoutFacts
    batch: BatchFacts | None
    splits: Sequence[SplitFacts]
    train_iters: int | None
    memory: MemoryEstimate | None = None
    pipeline: str | None = None


def facts_block(facts: RunFacts, more: Sequence[tuple[str, str]] = ()) -> str:
    """The block of facts: a title and one labelled line for each, at most twelve lines.

    ``more`` are further labels and lines; a line without a label goes on with the one above.
    """
    rows = [("model", _model_text(facts.model)), ("", _parameters_text(facts.model))]
    rows.append(("layout", _layout_text(facts.layout)))
    if facts.pipeline is not None:
        rows.append(("pipeline", facts.pipeline))
    if facts.batch is not None:
        rows.append(("batch", _batch_text(facts.batch, facts.model.seq_length)))
    steps = f"{facts.train_iters or 0:,} steps"
    for number, split in enumerate(facts.splits):
        rows.append(
            (split.name, _split_text(split, f"{steps} take" if number == 0 else "it takes"))
        )
    if facts.memory is not None:
        rows.append(("memory", _memory_text(facts.memory)))
    rows += more
    width = max(len(label) for label, _ in rows)
    return "\n".join(["this run", *(f"  {label:<{width}}  {text}" for label, text in rows)])


def _model_text(m: ModelFacts) -> str:
    heads = f"{m.num_heads} heads"
    if m.num_kv_heads != m.num_heads:
        heads += f" ({m.num_kv_heads} for keys and values)"
    return (
        f"{m.num_layers} layers, {m.hidden_size} wide, {heads}, {_mlp_text(m)}, "
        f"sequence {m.seq_length}; {m.norm}, {m.positions} positions, {m.activation}"
    )


def _mlp_text(m: ModelFacts) -> str:
    """The width of the second layer's input, and where it comes from unless it is what was asked for."""
    rounded = f", multiples of {m.mlp_multiple_of}" if m.mlp_multiple_of > 1 else ""
    if m.gated:
        return f"MLP {m.mlp_width} (value and gate: 2/3 of {m.asked_mlp_width}, half each{rounded})"
    if m.mlp_width != m.asked_mlp_width:
        return (
            f"MLP {m.mlp_width} ({m.asked_mlp_width}, up to a multiple of {2 * m.mlp_multiple_of})"
        )
    return f"MLP {m.mlp_width}"


def _parameters_text(m: ModelFacts) -> str:
    padded = f" (padded to {m.padded_vocab_size:,})" if m.padded_vocab_size != m.vocab_size else ""
    inner = m.parameters - m.embedding_parameters
    return (
        f"{m.parameters:,} parameters, {count_text(inner)} of them outside the embeddings; "
        f"vocabulary {m.vocab_size:,}{padded}"
    )


def _layout_text(f: LayoutFacts) -> str:
    ranks = "1 rank" if f.world_size == 1 else f"{f.world_size} ranks"
    nodes = "1 node" if f.num_nodes == 1 else f"{f.num_nodes} nodes"
    pipe = f"pipe {f.pipe_parallel_size} × " if f.pipe_parallel_size > 1 else ""
    context = f"context {f.context_parallel_size} × " if f.context_parallel_size > 1 else ""
    split = " (tokens shared too)" if f.sequence_parallel and f.model_parallel_size > 1 else ""
    host = f", {' and '.join(f.offloaded)} in the host's memory" if f.offloaded else ""
    axes = f"{pipe}data {f.data_parallel_size} × {context}model {f.model_parallel_size}"
    return (
        f"{ranks} on {nodes} = {axes}{split}; "
        f"{f.device}, {f.backend}, {f.precision}, ZeRO stage {f.zero_stage}{host}"
    )


def _batch_text(b: BatchFacts, seq_length: int) -> str:
    return (
        f"{b.global_batch_size:,} samples a step = {b.micro_batch_size} per rank × "
        f"{b.gradient_accumulation_steps} accumulation × {b.data_parallel_size} data; "
        f"{b.global_batch_size * seq_length:,} tokens a step"
    )


def _split_text(s: SplitFacts, taking: str) -> str:
    epoch = (
        f"{s.documents:,} documents; an epoch has {s.tokens_per_epoch:,} tokens, "
        f"{s.samples_per_epoch:,} samples"
    )
    epochs = s.samples_wanted / s.samples_per_epoch if s.samples_per_epoch else 0.0
    return f"{epoch}; {taking} {s.samples_wanted:,} samples, {float_text(epochs)} epochs"


def offloaded_text(m: MemoryEstimate) -> str:
    """What is added about memory of the host, where there is something to add."""
    return f"; {bytes_text(m.host)} more in the host's memory" if m.host else ""


def _memory_text(m: MemoryEstimate) -> str:
    return (
        f"about {bytes_text(m.total)} a rank beside the program itself: "
        f"weights {bytes_text(m.weights)}, gradients {bytes_text(m.gradients)}, "
        f"optimizer {bytes_text(m.optimizer)}, buffers {bytes_text(m.buffers)}, "
        f"activations {bytes_text(m.activations)}{offloaded_text(m)}"
    )
