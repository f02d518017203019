"""Loss, perplexity and bits per byte of a model on a range of documents.

Loss per token depends on the tokenizer: a larger vocabulary makes fewer, harder tokens. Bits per byte
do not (arXiv:2101.00027, section 3.1): the total loss divided by the bytes of the text.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch

from megatron.evaluation.progress import with_progress
from megatron.evaluation.windows import Windows
from megatron.model import GPT2Model
from megatron.mpu import ParallelGroups
from megatron.tokenizer import Tokenizer
from megatron.training.evaluate import total_loss


@dataclass(frozen=True)
class Score:
    """Attributes:
    loss: nats per token.
    perplexity: e to the ``loss``.
    nats_per_byte: total loss over the bytes of the text in UTF-8.
    bits_per_byte: the same in bits.
    tokens: how many tokens were predicted, ends of documents included.
    bytes: bytes of the text that these tokens stand for; an end of document stands for none.
    """

    loss: float
    perplexity: float
    nats_per_byte: float
    bits_per_byte: float
    tokens: int
    bytes: int

    @staticmethod
    def of(loss_sum: float, tokens: int, num_bytes: int) -> Score:
        """The score of ``loss_sum`` nats over ``tokens`` tokens of a text of ``num_bytes``."""
        loss = loss_sum / tokens
        per_byte = loss_sum / num_bytes if num_bytes else math.nan
        # A perplexity past the largest float says as much as infinity does.
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return Score(loss, perplexity, per_byte, per_byte / math.log(2), tokens, num_bytes)

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)


def score_documents(
    model: GPT2Model,
    windows: Windows,
    *,
    tokenizer: Tokenizer,
    groups: ParallelGroups,
    device: torch.device,
    micro_batch_size: int,
) -> Score:
    """Score ``model`` on all tokens of ``windows``; every rank returns the same.

    Raises:
        ValueError: there is nothing to predict (fewer than two tokens).
    """
    if len(windows) == 0:
        raise ValueError(f"nothing to predict in {windows.num_tokens} tokens")
    place, grid = groups.place, groups.grid
    batches = with_progress(
        windows.batches(
            size=micro_batch_size, rank=place.data, ranks=grid.data, blank=not model.reads_data
        ),
        num_windows=len(windows),
        seq_length=windows.seq_length,
        ranks=grid.data,
    )
    parts = (batch.part_of_sequences(place.context, grid.context) for batch in batches)
    total = total_loss(model, parts, groups, device)
    return Score.of(total.loss_sum, total.tokens, _text_bytes(windows, tokenizer))


def _text_bytes(windows: Windows, tokenizer: Tokenizer, chunk: int = 1 << 20) -> int:
    """UTF-8 bytes of the predicted tokens' text, ends of documents left out.

    Counted over chunks of a million tokens: a character that a chunk's border cuts is counted as
    the replacement character, which is at most a few bytes in several million.
    """
    total = 0
    for start in range(1, windows.num_tokens, chunk):
        ids = windows.tokens(start, start + chunk)
        total += len(tokenizer.detokenize(ids[ids != tokenizer.eod]).encode())
    return total
