"""A stage of the model as DeepSpeed's pipeline engine wants it.

To DeepSpeed the model is a list with one entry a stage. What a stage consists of, how it is initialised,
what of it is recomputed, and under which names its weights are known and stored, is :class:`GPT2Model`'s.

Between stages travel hidden states [b, s, h] and, where documents are kept apart, the places [b, s] of
tokens in their documents (int32): every stage with a transformer layer needs them. Only tensors of fixed
shapes travel: DeepSpeed tells the next stage the shapes once. b sequences, s tokens, h hidden; with
sequence parallelism a rank's part of the tokens.

Facts of DeepSpeed 0.19: the engine takes the last tensor for a mask if the module's class has this name,
unless told otherwise; it reads ``tied_comms`` only to count parameters; gradients of the copies that
``get_tied_weights_and_groups`` names are summed before those of the data-parallel ranks; a parameter
with ``ds_pipe_replicated`` counts in no norm; building the module prints.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megatron.model import layout
from megatron.model.gpt2_model import GPT2Model
from megatron.model.stages import Resets, begin_anew
from megatron.runtime.stock_deepspeed import deepspeed

_topology = deepspeed.runtime.pipe.topology


class GPT2ModelPipe(deepspeed.PipelineModule):  # type: ignore[misc]
    """A pipeline's stage, for ``deepspeed.initialize``. All ranks make theirs together.

    Args:
        stage: this rank's layers.
        loss: called with the last stage's logits and what came with them as labels.
        resets: what documents change in the model; None: nothing, and no places travel.

    Attributes:
        stage: the layers.
        before_forward: called with the number of the micro-batch before each forward pass of a
            training step; :meth:`begin_step` sets it.
    """

    def __init__(
        self,
        stage: GPT2Model,
        loss: Callable[[Tensor, tuple[Tensor, Tensor, Tensor]], Tensor],
        resets: Resets | None = None,
    ) -> None:
        groups = stage.groups
        stages, mine = groups.get_pipe_parallel_world_size(), groups.get_pipe_parallel_rank()
        entries = [stage if number == mine else nn.Identity() for number in range(stages)]
        with contextlib.redirect_stdout(io.StringIO()):
            super().__init__(
                entries,
                topology=_topology.PipeModelDataParallelTopology(
                    num_pp=stages,
                    num_mp=groups.get_model_parallel_world_size(),
                    num_dp=groups.get_gradient_world_size(),
                ),
                loss_fn=loss,
                partition_method="uniform",
            )
        self.resets = resets
        self._micro_batch = 0
        self.before_forward: Callable[[int], None] | None = None
        copy = stage.embedding_copy
        if copy is not None:
            copy.ds_pipe_replicated = True  # type: ignore[attr-defined]

    @property
    def stage(self) -> GPT2Model:
        """This rank's layers."""
        stage = self.forward_funcs[0]
        assert isinstance(stage, GPT2Model)
        return stage

    def begin_step(self, before_forward: Callable[[int], None] | None) -> None:
        """Count the micro-batches of a training step from 0 on."""
        self._micro_batch, self.before_forward = 0, before_forward

    def forward(self, inputs: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        """One micro-batch through this stage.

        Args:
            inputs: tokens or hidden states, alone or with places.

        Returns:
            What the next stage reads; logits [b, s, v] on the last.
        """
        x, *more = inputs if isinstance(inputs, tuple) else (inputs,)
        if self.before_forward is not None:
            self.before_forward(self._micro_batch)
        self._micro_batch += 1
        places = more[0] if more else None
        positions, segments = begin_anew(places, self.resets)
        x = self.stage(x, position_ids=positions, segments=segments)
        return x if places is None or self.stage.is_last else (x, places)

    def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, dist.ProcessGroup]]:
        """The parameters of which two stages have a copy, and whose gradients are summed over them."""
        stage, ends = self.stage, self.stage.groups.get_pipe_ends_group()
        if (
            ends is None
            or stage.model_args.no_weight_tying
            or not (stage.is_first or stage.is_last)
        ):
            return []
        return [(stage.sequential[layout.EMBEDDING].word_embeddings.weight, ends)]

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters by the names that they have in the whole model, as a plain run knows them."""
        for name, parameter in super().named_parameters("", recurse, remove_duplicate):
            plain = name.removeprefix(f"{self.stage_id}.")
            yield (f"{prefix}.{plain}" if prefix else plain), parameter

    def save_state_dict(
        self, save_dir: str, checkpoint_engine: Any, exclude_frozen_params: bool = False
    ) -> None:
        """Write a file for each layer that has weights; DeepSpeed calls it on every rank.

        The first data-parallel rank writes. A copy of the embedding's table is not stored twice.
        """
        if self.stage.groups.get_gradient_rank() != 0:
            return
        for number in self.stage.layers:
            # Copies: the optimizer may have made them views of one buffer, which would be stored whole.
            tensors = {
                name: tensor.detach().to("cpu", copy=True)
                for name, tensor in self.stage.sequential[number].state_dict().items()
            }
            if tensors:
                checkpoint_engine.save(state_dict=tensors, path=str(self._file(save_dir, number)))

    @torch.no_grad()
    def load_state_dir(self, load_dir: str, checkpoint_engine: Any, strict: bool = True) -> None:
        """Read what :meth:`save_state_dict` wrote; DeepSpeed calls it on every rank."""
        for name, layer in self.stage.sequential.named_children():
            if not list(layer.parameters()):
                continue
            path = str(self._file(load_dir, int(name)))
            tensors = checkpoint_engine.load(path, map_location="cpu")
            if int(name) not in self.stage.layers:
                tensors = {key: tensors[key] for key in layer.state_dict()}
            layer.load_state_dict(tensors, strict=strict)

    def _file(self, folder: str, number: int) -> Path:
        rank = self.stage.groups.get_model_parallel_rank()
        return Path(folder) / f"layer_{number:02d}-model_{rank:02d}-model_states.pt"
