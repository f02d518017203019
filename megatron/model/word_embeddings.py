"""The two ends of the model: ids to hidden states, hidden states to logits.

Shapes: b sequences, s tokens, h hidden, v padded vocabulary (one rank's part of it where the
vocabulary is split). With sequence parallelism hidden states are those of a rank's own tokens, and s of
their shape is this part.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron.model.norms import build_norm
from megatron.model.parametrization import STANDARD, Parametrization
from megatron.model.positional_embeddings import sinusoids
from megatron.mpu.collectives import part_of_sequence, shared_parameters
from megatron.mpu.groups import ParallelGroups
from megatron.mpu.layers import ColumnParallelLinear, VocabParallelEmbedding
from megatron.mpu.random import dropout_between_layers
from megatron.mpu.split_linear import column_linear
from megatron.neox_arguments.sections import ModelArgs


class Embedding(nn.Module):
    """A vector for each id, plus one for its position with ``pos_emb: learned``, then dropout.

    A soft prompt is ``soft_prompt`` vectors in front of the first token. They are what they are: no
    position is added to them, no factor, no dropout, and tokens have the positions that they have without.
    """

    def __init__(
        self,
        model: ModelArgs,
        padded_vocab_size: int,
        *,
        groups: ParallelGroups,
        parametrization: Parametrization = STANDARD,
        soft_prompt: int = 0,
    ) -> None:
        super().__init__()
        self.groups = groups
        self.dropout = model.hidden_dropout
        self.scale = model.embedding_scale * parametrization.embedding_factor
        self.position_scale = parametrization.position_factor
        self.offset = model.opt_pos_emb_offset
        self.has_sinusoids = model.pos_emb == "sinusoidal"
        self.word_embeddings = VocabParallelEmbedding(
            padded_vocab_size, model.hidden_size, groups=groups
        )
        self.position_embeddings = (
            nn.Embedding(model.learned_positions, model.hidden_size)
            if model.pos_emb == "learned"
            else None
        )

        self.soft_embedding_weight = (
            nn.Parameter(torch.empty(soft_prompt, model.hidden_size)) if soft_prompt else None
        )

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, *, with_prompt: bool = False
    ) -> Tensor:
        """tokens [b, s] -> [b, s, h]; ``positions`` are 0, 1, 2 ... unless given.

        ``with_prompt`` puts the vectors of the soft prompt in front: [b, soft_prompt + s, h].

        With context parallelism ``tokens`` are those of this rank, ``positions`` those of the whole
        sequence.
        """
        x: Tensor = self.word_embeddings(tokens)
        if self.scale != 1.0:
            x = x * self.scale
        if self.position_embeddings is not None or self.has_sinusoids:
            length = tokens.size(1) * self.groups.get_context_parallel_world_size()
            if positions is None:
                positions = torch.arange(length, device=tokens.device)
            mine = positions[..., part_of_sequence(length, self.groups)]
            x = x + self._of_positions(mine, x)
        if self.training and self.dropout:
            x = dropout_between_layers(x, self.dropout, self.groups)
        if with_prompt:
            assert self.soft_embedding_weight is not None
            prompt = self.soft_embedding_weight.to(x.dtype).expand(x.size(0), -1, -1)
            x = torch.cat((prompt, x), dim=1)
        return x

    def _of_positions(self, positions: Tensor, x: Tensor) -> Tensor:
        """What is added for ``positions`` [b, s] or [s]: [..., h], in the type of ``x``."""
        if self.position_embeddings is None:
            return sinusoids(positions, x.size(-1)).to(x.dtype)
        (table,) = shared_parameters(self.groups, self.position_embeddings.weight)
        found = F.embedding(positions + self.offset, table)
        return found if self.position_scale == 1.0 else found * self.position_scale


class EmbeddingCopy(nn.Module):
    """The embedding's table, for a tied head in another pipeline stage than the embedding.

    It starts as the table does, and the gradients of both are summed: they stay equal.
    """

    def __init__(self, model: ModelArgs, padded_vocab_size: int, *, groups: ParallelGroups) -> None:
        super().__init__()
        self.word_embeddings = VocabParallelEmbedding(
            padded_vocab_size, model.hidden_size, groups=groups
        )


class FinalNorm(nn.Module):
    """The norm behind the last transformer layer, under the name that checkpoints give it."""

    def __init__(self, model: ModelArgs, *, groups: ParallelGroups) -> None:
        super().__init__()
        self.norm = build_norm(model, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, h] -> [b, s, h]."""
        return self.norm(x)  # type: ignore[no-any-return]


class Head(nn.Module):
    """Logits from a weight of its own."""

    def __init__(
        self,
        model: ModelArgs,
        padded_vocab_size: int,
        *,
        groups: ParallelGroups,
        parametrization: Parametrization = STANDARD,
    ) -> None:
        super().__init__()
        self.factor = parametrization.logits_factor
        self.final_linear = ColumnParallelLinear(
            model.hidden_size, padded_vocab_size, groups=groups, bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, h] -> [b, s, v]."""
        x = x if self.factor == 1.0 else x * self.factor
        return self.final_linear(x)  # type: ignore[no-any-return]


class TiedHead(nn.Module):
    """Logits from the embedding's weight. It owns nothing: a tied model has no tensor here."""

    def __init__(
        self, *, groups: ParallelGroups, parametrization: Parametrization = STANDARD
    ) -> None:
        super().__init__()
        self.groups = groups
        self.factor = parametrization.logits_factor

    def forward(self, x: Tensor, embedding: VocabParallelEmbedding) -> Tensor:
        """[b, s, h] -> [b, s, v].

        ``embedding`` and not its weight, which under ZeRO stage 3 is whole only in here.
        """
        x = x if self.factor == 1.0 else x * self.factor
        return column_linear(x, embedding.weight, None, self.groups)
