"""What ``generate.py`` does: samples from nothing, from a file of prompts, or from what is typed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import torch

from megatron.errors import ConfigError, DataError
from megatron.generation.engine import Sample, generate
from megatron.generation.files import open_output, read_prompts, write_sample
from megatron.logging import get_logger
from megatron.model import GPT2Model
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.sections import TextgenArgs
from megatron.runtime.world import World
from megatron.tokenizer import Tokenizer

log = get_logger(__name__)

# Prompts that one rank continues at the same time.
BATCH_SIZE = 16

# Where samples from nothing go if nobody says where: the default of sample_output_file.
_OUTPUT = "samples.txt"


def run_generation(args: NeoXArgs, model: GPT2Model, tokenizer: Tokenizer, world: World) -> None:
    """Generate as ``text_gen_type`` says. Every rank of the run calls it.

    Without ``text_gen_type``: from ``sample_input_file`` if there is one, else unconditionally.

    Raises:
        ConfigError: a key that this kind of generation needs is missing.
        DataError: the prompts cannot be read, or the samples cannot be written.
    """
    settings, seed = args.textgen, args.training.seed
    kind = settings.text_gen_type
    if kind is None:
        kind = "unconditional" if settings.sample_input_file is None else "input-file"
    if kind == "interactive":
        converse(model, tokenizer, settings, seed, world, sys.stdin, sys.stdout)
        return
    prompts = [
        prompt for prompt in _prompts(kind, settings, world) for _ in range(settings.num_samples)
    ]
    beside = f"{settings.sample_input_file}.output.jsonl" if kind == "input-file" else _OUTPUT
    output = Path(settings.sample_output_file or beside)
    samples = _spread(model, tokenizer, prompts, settings, seed, world)
    if world.is_first:
        with open_output(output) as file:
            for sample in samples:
                write_sample(file, sample)
        log.info("wrote %d samples to %s", len(prompts), output)
    else:
        for _ in samples:
            pass  # rank 0 writes; this rank generates its share while it is asked for


def _prompts(kind: str, settings: TextgenArgs, world: World) -> list[str]:
    """What to continue, read by rank 0 and told to the others, as is what it finds wrong."""
    if kind == "unconditional":
        return [""]
    if settings.sample_input_file is None:
        raise ConfigError(
            "text_gen_type: input-file needs sample_input_file (or -i): a file of prompts, one a line",
            everywhere=True,
        )
    found: list[str] | str = []
    if world.is_first:
        try:
            found = read_prompts(Path(settings.sample_input_file))
        except DataError as error:
            found = str(error)
    found = world.broadcast(found)
    if isinstance(found, str):
        raise DataError(found, everywhere=True)
    return found


def _spread(
    model: GPT2Model,
    tokenizer: Tokenizer,
    prompts: list[str],
    settings: TextgenArgs,
    seed: int,
    world: World,
) -> Iterator[Sample]:
    """All samples in order, on every rank; each copy of the model continues its share of them."""
    groups = model.groups
    copies, mine = groups.grid.data, groups.place.data
    one_of_each = [ranks[0] for ranks in zip(*groups.grid.lines("data"), strict=True)]
    for start in range(0, len(prompts), BATCH_SIZE * copies):
        first = start + mine * BATCH_SIZE
        done = list(
            generate(
                model,
                tokenizer,
                prompts[first : first + BATCH_SIZE],
                settings,
                seed=seed,
                device=_device(model),
                batch_size=BATCH_SIZE,
                first_sample=first,
            )
        )
        by_rank = world.all_gather(done)
        for rank in one_of_each:
            yield from by_rank[rank]


def converse(
    model: GPT2Model,
    tokenizer: Tokenizer,
    settings: TextgenArgs,
    seed: int,
    world: World,
    source: TextIO,
    target: TextIO,
) -> None:
    """Continue what rank 0 reads from ``source`` until it ends; all ranks compute together.

    A prompt ends with ``prompt_end``, which is not part of it.
    """
    number = 0
    while True:
        prompt: str | None = None
        if world.is_first:
            target.write("Context prompt >>> ")
            target.flush()
            prompt = _read_until(source, settings.prompt_end or "\n")
            if prompt is not None:
                # A byte that is no UTF-8 is typed by mistake: no reason to end the conversation.
                prompt = prompt.encode(errors="surrogateescape").decode(errors="replace")
        prompt = world.broadcast(prompt)
        if prompt is None:
            break
        prompts = [prompt] * settings.num_samples
        samples = generate(
            model,
            tokenizer,
            prompts,
            settings,
            seed=seed,
            device=_device(model),
            first_sample=number,
        )
        number += len(prompts)
        for sample in samples:
            if world.is_first:
                target.write(f"Generated text: {sample.text}\n")
                target.write(f"({sample.message})\n" if sample.message else "")
    if world.is_first:
        target.write("\n")
        target.flush()


def _read_until(source: TextIO, end: str) -> str | None:
    """The next prompt, or None at the end of the input; an unended last one counts."""
    text = ""
    while not text.endswith(end):
        line = source.readline()
        if not line:
            return text.removesuffix("\n") or None
        text += line
        if not end.endswith("\n") and text.endswith(end + "\n"):
            return text.removesuffix(end + "\n")
    return text.removesuffix(end)


def _device(model: GPT2Model) -> torch.device:
    return next(model.parameters()).device
