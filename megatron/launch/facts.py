"""The page of ``./deepy.py --check``: what a configuration means, in numbers, without starting anything.

torch is not imported. What needs it, or the ranks themselves, is left to the block of facts at the
start of the run, which shows the same numbers in the same words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megatron.launch.data_facts import DataPage, data_page
from megatron.launch.needed_files import missing_lines
from megatron.launch.vocabulary import count_vocabulary
from megatron.monitor.console import LayoutFacts, RunFacts, facts_block, offloaded_text
from megatron.monitor.from_arguments import batch_facts, flops_a_token, model_facts
from megatron.monitor.pipeline_facts import memory_of_largest_stage, pipeline_text
from megatron.monitor.units import bytes_text, count_text, flops_text
from megatron.neox_arguments import BatchSizes, NeoXArgs
from megatron.neox_arguments.doubts import doubt_about_sums, doubts

# Where no tokenizer can be asked: GPT-2's and the 20B tokenizer's vocabularies, as Pythia pads them.
_USUAL_VOCABULARY = 50_304

Row = tuple[str, str]


def facts_page(
    args: NeoXArgs, *, ranks: int, nodes: int, accelerators: int, more: Sequence[Row] = ()
) -> str:
    """The page.

    Args:
        args: the checked configuration; without a model in it the page is short.
        ranks: processes of the run.
        nodes: that they are on.
        accelerators: GPUs that a process would see here.
        more: rows about the start itself.
    """
    files = ", ".join(file.path for file in args.files)
    head = f"configuration {files or '(none)'}, hash {args.hash()}\n"
    ends = [*_notes(args), *(("look at", line) for line in doubts(args))]
    if not args.model.is_given:
        rows = [
            ("part", "there is no model in it (num_layers, hidden_size, ...): put it beside one"),
            *ends,
        ]
        return head + "".join(f"  {label}  {text}\n" for label, text in rows)
    batch = _batch(args, ranks)
    data = data_page(args, batch)
    vocab, padded, doubt = vocabulary_of(args)
    parameters = args.model.parameter_count(padded)
    facts = RunFacts(
        model=model_facts(
            args.model,
            parameters=parameters,
            embedding_parameters=args.model.embedding_parameter_count(padded),
            vocab_size=vocab,
            padded_vocab_size=padded,
        ),
        layout=_layout(args, ranks, nodes, accelerators),
        batch=batch_facts(batch) if batch else None,
        splits=data.splits,
        train_iters=data.train_iters,
        pipeline=pipeline_text(args, batch, padded),
    )
    rows = [
        *_memory(args, batch, padded),
        *_compute(args, batch, parameters, padded),
        *_length(args, batch, data),
        *more,
        *ends,
        *(("look at", line) for line in _few_micro_batches(args, batch)),
        *(("look at", line) for line in _about_sums(args, batch)),
        *(("look at", line) for line in (*doubt, *data.lines, *missing_lines(args))),
    ]
    return head + facts_block(facts, _label_once(rows)) + "\n"


def _batch(args: NeoXArgs, ranks: int) -> BatchSizes | None:
    keys = args.batch
    if keys.train_batch_size is None and keys.train_micro_batch_size_per_gpu is None:
        return None
    return args.batch_sizes(ranks)


def vocabulary_of(args: NeoXArgs) -> tuple[int, int, tuple[str, ...]]:
    """Ids of the tokenizer, rows of the embedding, and what is uncertain about them."""
    multiple = args.model.make_vocab_size_divisible_by * args.parallelism.model_parallel_size
    vocab = count_vocabulary(args.tokenizer)
    if vocab is not None:
        return vocab, -(-vocab // multiple) * multiple, ()
    rows = args.expected.get("padded_vocab_size")
    if rows is not None:
        return rows, rows, ()
    rows = -(-_USUAL_VOCABULARY // multiple) * multiple
    named = args.tokenizer.vocab_file or "not given"
    return (
        rows,
        rows,
        (
            f"vocab_file: {named}: the vocabulary is not known here, and counted as {rows:,} rows; another "
            "number: --set padded_vocab_size=N",
        ),
    )


def _few_micro_batches(args: NeoXArgs, batch: BatchSizes | None) -> Iterator[str]:
    stages = args.parallelism.pipe_parallel_size
    if batch is not None and batch.gradient_accumulation_steps < stages:
        yield (
            f"gradient_accumulation_steps: {batch.gradient_accumulation_steps} micro-batches cannot keep "
            f"{stages} pipeline stages (pipe_parallel_size) busy: use several times as many"
        )


def _about_sums(args: NeoXArgs, batch: BatchSizes | None) -> Iterator[str]:
    if batch is not None:
        yield from doubt_about_sums(args, batch.gradient_accumulation_steps)


def _layout(args: NeoXArgs, ranks: int, nodes: int, accelerators: int) -> LayoutFacts:
    return LayoutFacts(
        world_size=ranks,
        num_nodes=nodes,
        data_parallel_size=ranks // args.parallelism.ranks_per_replica,
        pipe_parallel_size=args.parallelism.pipe_parallel_size,
        context_parallel_size=args.parallelism.context_parallel_size,
        model_parallel_size=args.parallelism.model_parallel_size,
        sequence_parallel=args.parallelism.sequence_parallel,
        device="GPU" if accelerators else "cpu",
        backend=args.training.distributed_backend or ("nccl" if accelerators else "gloo"),
        precision=args.model.precision,
        zero_stage=args.optim.zero_stage,
        offloaded=args.optim.offloaded,
    )


def _memory(args: NeoXArgs, batch: BatchSizes | None, padded: int) -> Iterator[Row]:
    """Memory of one rank by part, with and without ``checkpoint_activations``."""
    if batch is None:
        return
    kept, whole = (
        memory_of_largest_stage(args, batch, padded, checkpoint_activations=how)
        for how in (True, False)
    )
    now = kept if args.training.checkpoint_activations else whole
    parts = ("weights", "gradients", "optimizer", "buffers")
    where = "a rank of the largest stage" if args.parallelism.pipe_parallel_size > 1 else "a rank"
    yield (
        "memory",
        f"about {bytes_text(now.total)} {where} beside the program itself: "
        + ", ".join(f"{part} {bytes_text(getattr(now, part))}" for part in parts)
        + f", activations {bytes_text(now.activations)}{offloaded_text(now)}",
    )
    yield (
        "",
        f"activations {bytes_text(kept.activations)} with checkpoint_activations, "
        f"{bytes_text(whole.activations)} without",
    )


def _compute(
    args: NeoXArgs, batch: BatchSizes | None, parameters: int, padded: int
) -> Iterator[Row]:
    flops = flops_a_token(
        args.model,
        parameters=parameters,
        embedding_parameters=args.model.embedding_parameter_count(padded),
    )
    text = f"{flops_text(flops)} a token, forward and backward"
    if batch is not None:
        step = flops * batch.global_batch_size * args.model.seq_length
        text += f"; {flops_text(step)} a step"
    yield "compute", text
    yield "attention", _attention(args)


def _attention(args: NeoXArgs) -> str:
    """The kinds of the layers, and how far those see that do not see everything."""
    layers = [
        kind if (window := args.model.window_of(layer)) is None else f"{kind} of {window:,} tokens"
        for layer, kind in enumerate(args.model.attention_kinds)
    ]
    return ", ".join(f"{what} × {layers.count(what)}" for what in dict.fromkeys(layers))


def _length(args: NeoXArgs, batch: BatchSizes | None, data: DataPage) -> Iterator[Row]:
    """Steps, samples and tokens of the run, steps of an epoch, and the learning rate over them."""
    steps = data.train_iters
    if batch is None or not steps:
        return
    samples = steps * batch.global_batch_size
    yield (
        "length",
        f"{steps:,} steps = {samples:,} samples = {count_text(samples * args.model.seq_length)} tokens",
    )
    for split in data.splits:
        if split.name == "train":
            per_epoch = split.samples_per_epoch / batch.global_batch_size
            yield "", f"an epoch is {per_epoch:,.1f} steps"
    schedule, optim = args.lr_schedule, args.optim
    decay = schedule.lr_decay_iters or int((schedule.lr_decay_fraction or 1.0) * steps)
    yield (
        "",
        f"learning rate up to {optim.lr:g} in {schedule.warmup * decay:,.0f} steps, then "
        f"{schedule.lr_decay_style} to {schedule.min_lr:g} at step {decay:,}",
    )


def _notes(args: NeoXArgs) -> Iterator[Row]:
    """What is ignored, then the other notes."""
    mark = "ignored: "
    yield from (("ignored", note[len(mark) :]) for note in args.notes if note.startswith(mark))
    yield from (("note", note) for note in args.notes if not note.startswith(mark))


def _label_once(rows: Sequence[Row]) -> list[Row]:
    """Rows of one label below each other show it once."""
    shown: list[Row] = []
    before = ""
    for label, text in rows:
        shown.append(("" if label == before else label, text))
        before = label or before
    return shown
