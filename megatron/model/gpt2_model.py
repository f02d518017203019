"""The dense decoder as a list of layers (:mod:`megatron.model.layout` has the list and its names).

A model holds all layers of the list or, as a stage of a pipeline, a run of them: the first stage reads
tokens, the others what the stage before them gives, and the last gives logits.

Shapes: b sequences, s tokens, h hidden, v padded vocabulary (one rank's part of it where the
vocabulary is split). Hidden states are [b, s, h] throughout. Built in fp32; cast it as a whole for a
half-precision run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from megatron.model import layout
from megatron.model.init_functions import initialize_layer
from megatron.model.kept_activations import KeptInputs
from megatron.model.kv_cache import KVCache
from megatron.model.layer_list import LayerList, layer_factories
from megatron.model.parametrization import STANDARD, Parametrization
from megatron.model.segments import Segments
from megatron.model.word_embeddings import EmbeddingCopy, TiedHead
from megatron.mpu.groups import ParallelGroups
from megatron.neox_arguments.sections import ModelArgs
from megatron.neox_arguments.sections.variants import SoftPrompt


class GPT2Model(nn.Module):
    """A causal language model, or a stage of one.

    Args:
        model: the model's section of the configuration.
        padded_vocab_size: rows of the embedding over all model-parallel ranks.
        groups: the layout of ranks.
        seed: of the initial weights, which depend on nothing else of the run.
        checkpoint_activations: recompute activations in the backward pass instead of keeping them.
        checkpoint_num_layers: how many transformer layers are recomputed at a time.
        partition_activations: tensor-parallel ranks split the inputs that are kept for it.
        checkpoint_in_cpu: these inputs lie in the host's memory.
        place_layer: called with each layer once it has its weights, before the next is made: what it
            moves elsewhere never lies here beside the other layers.
        layers: numbers of the layers to hold; None holds all.
        parametrization: what follows from the model's width.
        soft_prompt: vectors that stand in front of every text. They add no logits.

    Attributes:
        layers: the numbers of its layers.
        sequential: the layers; parameters are named ``sequential.<number>.<name in the layer>``. A tied
            head in another stage than the embedding has a copy of its table, under the table's name.
    """

    def __init__(
        self,
        model: ModelArgs,
        *,
        padded_vocab_size: int,
        groups: ParallelGroups,
        seed: int,
        checkpoint_activations: bool = False,
        checkpoint_num_layers: int = 1,
        partition_activations: bool = False,
        checkpoint_in_cpu: bool = False,
        place_layer: Callable[[nn.Module], object] | None = None,
        layers: range | None = None,
        parametrization: Parametrization = STANDARD,
        soft_prompt: SoftPrompt | None = None,
    ) -> None:
        super().__init__()
        self.model_args = model
        self.groups = groups
        self.padded_vocab_size = padded_vocab_size
        self.checkpoint_activations = checkpoint_activations
        self.checkpoint_num_layers = checkpoint_num_layers
        self.kept_inputs = KeptInputs(
            groups, partition=partition_activations, on_host=checkpoint_in_cpu
        )
        self.parametrization = parametrization
        self.prompt_length = 0 if soft_prompt is None else soft_prompt.num_tokens
        factories = layer_factories(
            model,
            padded_vocab_size=padded_vocab_size,
            groups=groups,
            parametrization=parametrization,
            soft_prompt=self.prompt_length,
        )
        self.layers = range(len(factories)) if layers is None else layers
        made = {number: factories[number] for number in self.layers}
        if self.is_last and not self.is_first and not model.no_weight_tying:
            made[layout.EMBEDDING] = partial(EmbeddingCopy, model, padded_vocab_size, groups=groups)
        self.sequential = LayerList(len(factories))
        for number, make in made.items():
            layer = make()
            initialize_layer(
                layer,
                number,
                model,
                seed=seed,
                groups=groups,
                parametrization=parametrization,
                prompt_range=0.0 if soft_prompt is None else soft_prompt.init_range,
            )
            if place_layer is not None:
                place_layer(layer)
            self.sequential.put(number, layer)

    @property
    def is_first(self) -> bool:
        """Whether it reads tokens."""
        return layout.EMBEDDING in self.layers

    @property
    def is_last(self) -> bool:
        """Whether it gives logits."""
        return layout.head(self.model_args.num_layers) in self.layers

    @property
    def reads_data(self) -> bool:
        """Whether it needs tokens or labels; a stage between the first and the last does not."""
        return self.is_first or self.is_last

    @property
    def embedding_copy(self) -> nn.Parameter | None:
        """The parameter of another stage that this one has a copy of."""
        table = None if self.is_first or not self.is_last else self.borrowed_parameters()
        return table[0][1] if table else None

    def forward(
        self,
        x: Tensor,
        cache: KVCache | None = None,
        position_ids: Tensor | None = None,
        only: Tensor | None = None,
        segments: Segments | None = None,
    ) -> Tensor:
        """Logits of the token after each of ``tokens``.

        Args:
            x: ``tokens`` [b, s], ids; behind the first stage, the hidden states [b, s, h] of the one before.
                With context parallelism this rank's part of each sequence, and the logits are those of
                this part, while ``position_ids`` and ``segments`` are those of whole sequences.
            cache: keys and values of earlier tokens; those of ``tokens`` are added to it.
            position_ids: [b, s] positions in the sequence, 0 ... s - 1 unless given. With a cache,
                a token looks at all slots up to its own position.
            only: [b] the one token of each row, 0 ... s - 1, whose logits are wanted: those of a whole
                prompt can be larger than the model.
            segments: stretches of ``tokens`` that see nothing but themselves; not with a cache. They
                change no position.

        Returns:
            [b, s, v] in the type of the weights; [b, 1, v] with ``only``. Before the last stage, hidden
            states [b, s, h].
        """
        # Behind the first pass the cache knows the prompt.
        prompt = 0 if cache is not None and cache.has_prompt else self.prompt_length
        if self.is_first:
            x = self.sequential[layout.EMBEDDING](x, position_ids, with_prompt=prompt > 0)
        places = self._behind_prompt(position_ids, prompt)
        x = self._blocks(x, cache, places, segments)
        if prompt:
            assert segments is None, "a text has a prompt; documents behind the first have none"
            x = x[:, prompt:]
        if cache is not None:
            cache.has_prompt = self.prompt_length > 0
        if only is not None and self.is_last:
            shared = self.groups.sequence_parallel or self.groups.get_context_parallel_group()
            assert not shared, "a token is looked for in whole sequences"
            x = x[torch.arange(x.size(0), device=x.device), only].unsqueeze(1)
        if layout.final_norm(self.model_args.num_layers) in self.layers:
            x = self.sequential[-2](x)
        if not self.is_last:
            return x
        head = self.sequential[-1]
        if isinstance(head, TiedHead):
            logits: Tensor = head(x, self.sequential[layout.EMBEDDING].word_embeddings)
        else:
            logits = head(x)
        return logits

    def _behind_prompt(self, positions: Tensor | None, new: int) -> Tensor | None:
        """Places of what goes through the layers, of which the first ``new`` are the soft prompt's."""
        if positions is None or not self.prompt_length:
            return positions
        positions = positions + self.prompt_length
        first = torch.arange(new, device=positions.device).expand(positions.size(0), -1)
        return torch.cat((first, positions), dim=1)

    def _blocks(
        self,
        x: Tensor,
        cache: KVCache | None,
        positions: Tensor | None,
        segments: Segments | None,
    ) -> Tensor:
        """The transformer layers: [b, s, h] -> [b, s, h]."""
        blocks = [self.sequential[layout.FIRST_BLOCK + number] for number in self.block_numbers]
        if not (self.checkpoint_activations and self.training):
            for block in blocks:
                x = block(x, cache, positions, segments)
            return x
        assert cache is None, "a cache is for generation; activation checkpointing is for training"

        def run(group: list[nn.Module], x: Tensor) -> Tensor:
            for block in group:
                x = block(x, None, positions, segments)
            return x

        for start in range(0, len(blocks), self.checkpoint_num_layers):
            group = blocks[start : start + self.checkpoint_num_layers]
            x = self.kept_inputs.recomputed(partial(run, group), x)
        return x

    @property
    def block_numbers(self) -> range:
        """The transformer layers that it holds, counted from 0 over those of the whole model."""
        blocks = range(self.model_args.num_layers)
        start, stop = (
            min(max(number - layout.FIRST_BLOCK, 0), len(blocks))
            for number in (self.layers.start, self.layers.stop)
        )
        return blocks[start:stop]

    def is_elsewhere(self, name: str) -> bool:
        """Whether the whole model has a layer of the parameter ``name``, and another stage holds it."""
        number = name.removeprefix("sequential.").partition(".")[0]
        total = layout.head(self.model_args.num_layers) + 1
        return number.isdecimal() and int(number) in range(total) and int(number) not in self.layers

    def borrowed_parameters(self) -> list[tuple[nn.Module, nn.Parameter]]:
        """Modules that compute with a parameter of another one, and that parameter.

        Unknown ones ZeRO stage 3 learns of when it first misses one, in the middle of a run: what it has
        recorded by then it stops at.
        """
        borrowed: list[tuple[nn.Module, nn.Parameter]] = []
        if self.is_first:
            embedding = self.sequential[layout.EMBEDDING]
            if embedding.position_embeddings is not None:
                borrowed.append((embedding, embedding.position_embeddings.weight))
        if self.is_last and isinstance(self.sequential[-1], TiedHead):
            table = self.sequential[layout.EMBEDDING].word_embeddings.weight
            borrowed.append((self.sequential[-1], table))
        return borrowed

    def make_cache(self, batch: int, length: int) -> KVCache:
        """An empty cache for ``batch`` sequences of up to ``length`` tokens, beside the weights."""
        weight = next(self.parameters())
        return KVCache(
            self.model_args,
            batch=batch,
            length=length + self.prompt_length,
            groups=self.groups,
            dtype=weight.dtype,
            device=weight.device,
            layers=self.block_numbers,
        )

    @property
    def max_positions(self) -> int:
        """Longest sequence, in tokens, that the model knows positions for."""
        return self.model_args.max_position_embeddings
