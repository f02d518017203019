"""How DeepSpeed's files hold the parameters of one model-parallel rank, for each kind of optimizer.

All describe releases 0.19. Tensors are views of mapped files as far as a parameter lies in one piece.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron.checkpointing.universal import VALUE, Shape
from megatron.errors import CheckpointError
from megatron.model.layout import PARAMETER_NAMES, decays

Content = Mapping[str, Any]

# Why states cannot be exchanged with such a run.
ROUND_ROBIN = (
    "zero_optimization.round_robin_gradients, with which DeepSpeed does not know where in its flat tensors "
    "a parameter lies"
)


class Fragment:
    """Stands in for DeepSpeed's ``fragment_address``: where a part of a parameter lies in a flat tensor.

    Attributes:
        start: number of its first element.
        numel: how many there are.
    """

    start: int
    numel: int


class RankState(ABC):
    """What one model-parallel rank held.

    Attributes:
        shapes: of its parameters, by name.
        moments: the optimizer's states of each of them.
        optimizer_steps: the counts of updates that are stored; more than one are an error.
        loss_scaler: fields of the loss scaler, if there is one.
        facts: other content of the rank's file of weights.
    """

    shapes: Mapping[str, Shape]
    moments: tuple[str, ...] = ()
    optimizer_steps: frozenset[float] = frozenset()
    loss_scaler: Mapping[str, Any] | None = None
    facts: Content

    @abstractmethod
    def read(self, state: str, name: str) -> Tensor:
        """One state of a parameter; not to be written to."""


class WeightsOnly(RankState):
    """The weights that computed, of a checkpoint without optimizer state, or where none is wanted."""

    def __init__(self, weights: Mapping[str, Tensor], facts: Content) -> None:
        self._weights = weights
        self.facts = facts
        self.shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}

    def read(self, state: str, name: str) -> Tensor:
        assert state == VALUE, state
        return self._weights[name]


class PlainOptimizer(RankState):
    """ZeRO 0 in fp32: torch's optimizer on the weights themselves.

    It numbers its parameters through its groups: first those that decay, in the model's order, then the
    others; or, where groups differ in more than that, as they say (:mod:`megatron.optimizers.param_groups`).

    Args:
        path: the rank's file.
        facts: its content.
        weights: the rank's parameters, in the order of the model.
    """

    def __init__(self, path: Path, facts: Content, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights
        self.facts = facts
        self.shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        names = [
            name
            for group in facts["optimizer"]["param_groups"]
            for name in group.get(PARAMETER_NAMES, ())
        ] or sorted(weights, key=lambda name: not decays(name, weights[name].shape))
        states = facts["optimizer"]["state"]
        self._states = {name: states.get(number, {}) for number, name in enumerate(names)}
        self.moments, self.optimizer_steps = _kinds(self._states.values())
        for name, state in self._states.items():
            for kind in self.moments:
                if kind not in state or state[kind].shape != weights[name].shape:
                    raise CheckpointError(f"{path}: its {kind} do not belong to its parameters")

    def read(self, state: str, name: str) -> Tensor:
        if state == VALUE:
            return self._weights[name]
        tensor: Tensor = self._states[name][state]
        return tensor


class ZeroPartitions(RankState):
    """ZeRO 1 and 2: the parameters of a group lie end to end in one flat tensor, cut among data ranks.

    Each data-parallel rank's file says which fragments of which parameters its cut holds. In the order
    of the ranks, they make up the parameter.

    Args:
        files: each data-parallel rank's optimizer state, in their order, and where it comes from.
        facts: content of the rank's file of weights, which has the shapes.
    """

    def __init__(self, files: Sequence[tuple[Path, Content]], facts: Content) -> None:
        self.facts = facts
        self._files = files
        path, first = files[0]
        if facts["ds_config"]["zero_optimization"].get("round_robin_gradients"):
            raise CheckpointError(
                f"{path}: saved with {ROUND_ROBIN}\n"
                "  to do: go on from the weights alone with no_load_optim: true (same step) or "
                "finetune: true (from step 0)"
            )
        self.shapes = {
            name: tuple(shape)
            for group in facts["param_shapes"] or ()
            for name, shape in group.items()
        }
        self._fragments: dict[str, list[tuple[int, int, Fragment]]] = {n: [] for n in self.shapes}
        states = []
        for rank, (_, content) in enumerate(files):
            for group, mapping in enumerate(content["param_slice_mappings"]):
                for name, fragment in mapping.items():
                    self._fragments[name].append((rank, group, fragment))
            states += list(content["base_optimizer_state"]["state"].values())
        for name, fragments in self._fragments.items():
            found = sum(fragment.numel for _, _, fragment in fragments)
            if found != math.prod(self.shapes[name]):
                raise CheckpointError(
                    f"{path.parent}: the files of {path.name} and its neighbours hold {found:,} of "
                    f"{math.prod(self.shapes[name]):,} numbers of {name}"
                )
        self.moments, self.optimizer_steps = _kinds(states)
        self.loss_scaler = scaler_fields(first.get("loss_scaler"))

    def read(self, state: str, name: str) -> Tensor:
        parts = []
        for rank, group, fragment in self._fragments[name]:
            content = self._files[rank][1]
            flat = (
                content["single_partition_of_fp32_groups"][group]
                if state == VALUE
                else content["base_optimizer_state"]["state"][group][state]
            )
            parts.append(flat.narrow(0, fragment.start, fragment.numel))
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.view(self.shapes[name])


class LayerPartitions(RankState):
    """ZeRO 3: each parameter is cut among data ranks by itself, evenly, with zeros behind its last number.

    A data-parallel rank's cuts of the parameters of a group lie end to end in one flat tensor.

    Args:
        files: each data-parallel rank's optimizer state, in their order, and where it comes from.
        facts: content of the first one's file of weights, which has the shapes in the order of the cuts.
    """

    def __init__(self, files: Sequence[tuple[Path, Content]], facts: Content) -> None:
        self.facts = facts
        groups: Sequence[Mapping[str, Shape]] = facts["param_shapes"]
        self.shapes = {name: tuple(shape) for group in groups for name, shape in group.items()}
        self._flat = [content["fp32_flat_groups"] for _, content in files]
        stored = [content["optimizer_state_dict"]["state"] for _, content in files]
        self._states = stored
        # Of each parameter: its group, where the cuts of it begin, and how long each is.
        self._cuts: dict[str, tuple[int, int, int]] = {}
        for number, group in enumerate(groups):
            start = 0
            for name in group:
                length = -(-math.prod(self.shapes[name]) // len(files))
                self._cuts[name] = (number, start, length)
                start += length
            for path, flat in zip((path for path, _ in files), self._flat, strict=True):
                if flat[number].numel() < start:
                    raise CheckpointError(
                        f"{path} holds {flat[number].numel():,} of {start:,} numbers of its part of "
                        f"{next(iter(group))} and others"
                    )
        self.moments, self.optimizer_steps = _kinds(
            state for states in stored for state in states.values()
        )
        self.loss_scaler = scaler_fields(files[0][1].get("loss_scaler"))

    def read(self, state: str, name: str) -> Tensor:
        group, start, length = self._cuts[name]
        parts = [
            (flat[group] if state == VALUE else states[group][state]).narrow(0, start, length)
            for flat, states in zip(self._flat, self._states, strict=True)
        ]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        shape = self.shapes[name]
        return whole[: math.prod(shape)].view(shape)


def _kinds(states: Any) -> tuple[tuple[str, ...], frozenset[float]]:
    """The names of the states that have a number for each of a parameter's, and the counts of updates."""
    names: dict[str, None] = {}
    steps = set()
    for state in states:
        for name, value in state.items():
            if name == "step":
                steps.add(float(value))
            elif isinstance(value, Tensor):
                names[name] = None
    return tuple(names), frozenset(steps)


def scaler_fields(scaler: object) -> Mapping[str, Any] | None:
    """The numbers of a loss scaler that does scale; None for one that leaves losses alone."""
    fields = dict(vars(scaler)) if scaler is not None else {}
    if not fields.get("dynamic") and fields.get("cur_scale", 1.0) == 1.0:
        return None
    plain = (int, float, bool, type(None))
    return {name: value for name, value in fields.items() if isinstance(value, plain)}
