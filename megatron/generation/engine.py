"""The loop around the model: a batch of prompts of any lengths, token by token.

Prompts sit left-aligned in one array and every row continues at its own position, so that no padding
is ever looked at and a text does not depend on the other prompts of its batch. Shapes: b sequences,
t positions (of the longest text that may come out), v vocabulary.

Draws are reproducible: sample number i of a run takes its random numbers from (seed, i) alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from megatron.generation.sampling import next_tokens
from megatron.model import GPT2Model
from megatron.model.stages import logits_everywhere
from megatron.mpu.collectives import gather_from_model_parallel
from megatron.neox_arguments.sections import TextgenArgs
from megatron.runtime.seeds import derive_seed
from megatron.tokenizer import Tokenizer


@dataclass(frozen=True)
class Sample:
    """One generated text.

    Attributes:
        context: the prompt.
        text: what the model added, without the end-of-document token.
        length: tokens of ``text``.
        finished: the model ended the document itself.
        message: why there is less text than asked for, or None.
        duration_seconds: of the batch that this sample was part of.
        logits: [length][v] of each token of ``text``, if asked for.
    """

    context: str
    text: str
    length: int
    finished: bool
    message: str | None
    duration_seconds: float
    logits: list[list[float]] | None = field(default=None, repr=False)


@dataclass
class _Row:
    """One sequence on its way: prompt ids, then generated ids; the end token is not kept."""

    prompt: list[int]
    uniform: Tensor
    new: list[int] = field(default_factory=list)
    logits: list[list[float]] = field(default_factory=list)
    finished: bool = False

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.new)


def generate(
    model: GPT2Model,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: TextgenArgs,
    *,
    seed: int,
    device: torch.device,
    batch_size: int = 16,
    first_sample: int = 0,
) -> Iterator[Sample]:
    """Continue each prompt, in order.

    Args:
        model: in any state; it is put into evaluation mode.
        tokenizer: of the model's vocabulary.
        prompts: texts; an empty one starts a new document.
        settings: how to draw, and how many tokens.
        seed: of the draws.
        device: where the model is.
        batch_size: prompts that are continued at the same time.
        first_sample: number of the first prompt among all samples of a run.
    """
    model.eval()
    most = min(settings.maximum_tokens, model.max_positions)
    for start in range(0, len(prompts), batch_size):
        batch = prompts[start : start + batch_size]
        began = time.monotonic()
        rows = [
            _Row(
                # A model has seen documents begin behind the end of another one.
                prompt=tokenizer.tokenize(prompt) or [tokenizer.eod],
                uniform=_uniform(seed, first_sample + start + i, most),
            )
            for i, prompt in enumerate(batch)
        ]
        _continue(model, tokenizer, rows, settings, device)
        seconds = time.monotonic() - began
        for prompt, row in zip(batch, rows, strict=True):
            yield _sample(prompt, row, model, tokenizer, settings, seconds)


def _uniform(seed: int, number: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "sample", number))
    return torch.rand(count, generator=generator, dtype=torch.float64)


@torch.inference_mode()
def _continue(
    model: GPT2Model,
    tokenizer: Tokenizer,
    rows: list[_Row],
    settings: TextgenArgs,
    device: torch.device,
) -> None:
    """Fill in ``new``, ``logits`` and ``finished`` of each row."""
    limit = model.max_positions
    rows = [row for row in rows if len(row.prompt) < limit]
    if not rows:
        return
    longest = min(max(len(row.prompt) for row in rows) + settings.maximum_tokens, limit)
    tokens = torch.full((len(rows), longest), tokenizer.eod, device=device)
    for i, row in enumerate(rows):
        tokens[i, : len(row.prompt)] = torch.tensor(row.prompt, device=device)
    reader = _Reader(model, tokens, recompute=settings.recompute)
    for step in range(settings.maximum_tokens):
        lengths = torch.tensor([row.length for row in rows], device=device)
        logits = reader.next_logits(lengths)
        # Rows that only fill the vocabulary up to a round number stand for nothing.
        logits[:, tokenizer.vocab_size :] = -torch.inf
        chosen = next_tokens(
            logits,
            torch.stack([row.uniform[step] for row in rows]).to(device),
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
        )
        for i, (row, token) in enumerate(zip(rows, chosen.tolist(), strict=True)):
            if row.finished or row.length == longest:
                continue
            row.finished = token == tokenizer.eod
            if row.finished:
                continue
            tokens[i, row.length] = token
            row.new.append(token)
            if settings.return_logits:
                row.logits.append(logits[i, : tokenizer.vocab_size].tolist())
        if all(row.finished or row.length == longest for row in rows):
            return


class _Reader:
    """Logits behind the last token of each row, with a cache of what was read or from scratch.

    Args:
        tokens: [b, t]; the caller writes into it what it chose.
        recompute: read all of every row again for each token.
    """

    def __init__(self, model: GPT2Model, tokens: Tensor, *, recompute: bool) -> None:
        self.model = model
        self.tokens = tokens
        self.cache = None if recompute else model.make_cache(tokens.size(0), tokens.size(1))
        self.read_prompts = False

    def next_logits(self, lengths: Tensor) -> Tensor:
        """[b] lengths of the rows so far -> [b, v] fp32 logits of the whole vocabulary."""
        last = lengths - 1
        if self.cache is not None and self.read_prompts:
            tokens = self.tokens.gather(1, last.unsqueeze(1))
            logits = logits_everywhere(self.model, tokens, self.cache, last.unsqueeze(1))
        else:
            # What lies behind a row's end is read too, and no token of the row ever looks at it.
            tokens = self.tokens[:, : int(lengths.max())]
            positions = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
            logits = logits_everywhere(self.model, tokens, self.cache, positions, only=last)
            self.read_prompts = True
        whole = gather_from_model_parallel(logits[:, 0], self.model.groups)
        return whole.float()


def _sample(
    prompt: str,
    row: _Row,
    model: GPT2Model,
    tokenizer: Tokenizer,
    settings: TextgenArgs,
    seconds: float,
) -> Sample:
    limit = model.max_positions
    message = None
    if len(row.prompt) >= limit:
        message = (
            f"the prompt has {len(row.prompt)} tokens, and the model has positions for {limit} "
            "(max_position_embeddings): nothing was generated"
        )
    elif not row.finished and len(row.new) < settings.maximum_tokens:
        message = f"stopped at the last of the model's {limit} positions (max_position_embeddings)"
    return Sample(
        context=prompt,
        text=_added_text(row, tokenizer, prompt),
        length=len(row.new),
        finished=row.finished,
        message=message,
        duration_seconds=seconds,
        logits=row.logits if settings.return_logits else None,
    )


def _added_text(row: _Row, tokenizer: Tokenizer, prompt: str) -> str:
    """The text of the new ids as it reads behind the prompt.

    Some tokenizers write a token differently at the start of a text, so the whole is decoded and the
    prompt cut off, unless the prompt's last character changes with what follows.
    """
    if not prompt:
        return tokenizer.detokenize(row.new)
    before = tokenizer.detokenize(row.prompt)
    whole = tokenizer.detokenize(row.prompt + row.new)
    return whole[len(before) :] if whole.startswith(before) else tokenizer.detokenize(row.new)
