"""How the engines of DeepSpeed keep parameters and optimizer state, for each ZeRO stage: to write into.

All describe releases 0.19. What ``deepspeed.utils.safe_set_full_*`` does rightly is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from megatron.checkpointing.deepspeed_files import model_under
from megatron.checkpointing.layer_files import holds_parts
from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.universal import VALUE, EngineState, Shape
from megatron.checkpointing.universal_optimizers import ROUND_ROBIN
from megatron.errors import CheckpointError
from megatron.runtime.partitioned import rank_among_holders, whole_shape
from megatron.runtime.stock_deepspeed import Engine, deepspeed


class Target(Protocol):
    """One rank's engine, a parameter at a time.

    Attributes:
        parameters: this rank's, by their names in the plain form.
    """

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]: ...

    def shape_of(self, parameter: nn.Parameter) -> Shape:
        """The shape of the model-parallel rank's part, however data-parallel ranks share it."""
        ...

    def holds(self, parameter: nn.Parameter) -> bool:
        """Whether this rank's optimizer keeps any of it."""
        ...

    def make_states(self, kinds: Iterable[str], step: float | None) -> None:
        """Give the optimizer the states that it would make at its first step, and its count of updates."""
        ...

    def set(self, parameter: nn.Parameter, state: str, value: Tensor) -> None:
        """Keep this rank's cut of ``value``, one state of the model-parallel rank's part."""
        ...

    def finish(self) -> None:
        """Have the weights that compute follow from the values that were set. All ranks call this."""
        ...


def target_of(engine: Engine) -> Target:
    """The way into ``engine``."""
    if isinstance(engine.optimizer, torch.optim.Optimizer):
        return _PlainTarget(engine)
    return _PartitionedTarget(engine) if holds_parts(engine) else _ZeroTarget(engine)


def base_optimizer(engine: Engine) -> torch.optim.Optimizer:
    """torch's (or DeepSpeed's own) optimizer, under ZeRO's."""
    optimizer = engine.optimizer
    found = optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer.optimizer
    assert isinstance(found, torch.optim.Optimizer)
    return found


def kept_states(optimizer: torch.optim.Optimizer) -> frozenset[str]:
    """The states that the optimizer keeps for each number of a parameter, once it has stepped."""
    settings = optimizer.defaults
    if "betas" in settings:
        largest = {"max_exp_avg_sq"} if settings.get("amsgrad") else set()
        return frozenset({"exp_avg", "exp_avg_sq"} | largest)
    return frozenset({"momentum_buffer"} if settings.get("momentum") else ())


def require_own_states(
    info: CheckpointInfo, stored: Iterable[str], engine: Engine, skipped_steps: int
) -> None:
    """Refuse states that the optimizer of ``engine`` could not go on from as its own.

    Args:
        info: the checkpoint.
        stored: the states that it holds of each parameter.
        skipped_steps: steps in which nothing was updated; an optimizer that has made none has no state.

    Raises:
        CheckpointError: the states are another optimizer's.
    """
    found, wanted = frozenset(stored), kept_states(base_optimizer(engine))
    if found == wanted or (not found and info.step <= skipped_steps):
        return
    raise CheckpointError(
        f"{info.path}\n  found: optimizer state {', '.join(sorted(found)) or 'none'}\n"
        f"  expected: {', '.join(sorted(wanted)) or 'none'}, which this run's optimizer keeps\n"
        "  to do: use the optimizer of the run that wrote it, or go on from the weights alone with "
        "no_load_optim: true (same step) or finetune: true (from step 0)"
    )


def set_engine_state(engine: Engine, step: int, state: EngineState) -> None:
    """Restore the counters, and the loss scale of a run in fp16 that went on in fp16."""
    engine.global_steps = step
    engine.global_samples = state.global_samples
    engine.skipped_steps = state.skipped_steps
    if state.loss_scaler is not None:
        continue_scaling(getattr(engine.optimizer, "loss_scaler", None), state.loss_scaler)


def continue_scaling(ours: Any, stored: Mapping[str, Any]) -> None:
    """Put DeepSpeed's loss scaler ``ours`` where one with ``stored`` fields was, as far as both follow
    overflows. What does not change while it runs is the configuration's.
    """
    if not (getattr(ours, "dynamic", False) and stored["dynamic"]):
        return
    for name in ("cur_iter", "last_overflow_iter"):
        setattr(ours, name, stored[name])
    ours.cur_hysteresis = min(stored["cur_hysteresis"], ours.delayed_shift)
    ours.cur_scale = max(stored["cur_scale"], ours.min_scale)


def _named_parameters(engine: Engine) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model_under(engine).named_parameters() if p.requires_grad}


def _fresh_states(
    optimizer: torch.optim.Optimizer, tensor: Tensor, kinds: Iterable[str], step: float | None
) -> None:
    """Give ``tensor``, which ``optimizer`` updates, zeros for each of ``kinds`` and a count of updates."""
    states: dict[str, Any] = {kind: torch.zeros_like(tensor) for kind in kinds}
    if step is not None:
        # torch counts in a tensor, DeepSpeed's own optimizers in a number.
        is_torch = type(optimizer).__module__.startswith("torch.")
        states["step"] = torch.tensor(float(step)) if is_torch else int(step)
    optimizer.state[tensor] = states


class _PlainTarget:
    """ZeRO 0 in fp32: torch's optimizer on the weights themselves."""

    def __init__(self, engine: Engine) -> None:
        self._optimizer: torch.optim.Optimizer = engine.optimizer
        self.parameters = _named_parameters(engine)

    def shape_of(self, parameter: nn.Parameter) -> Shape:
        return tuple(parameter.shape)

    def holds(self, parameter: nn.Parameter) -> bool:
        return True

    def make_states(self, kinds: Iterable[str], step: float | None) -> None:
        kinds = tuple(kinds)
        for parameter in self.parameters.values():
            _fresh_states(self._optimizer, parameter, kinds, step)

    @torch.no_grad()
    def set(self, parameter: nn.Parameter, state: str, value: Tensor) -> None:
        there = parameter if state == VALUE else self._optimizer.state[parameter][state]
        there.copy_(value)

    def finish(self) -> None:
        """The weights are the values."""


def _flat_groups(zero: Any) -> list[Tensor]:
    """This rank's cuts of the groups; they have another name where bf16 gradients are summed in fp32."""
    name = "single_partition_of_fp32_groups"
    found: list[Tensor] = getattr(zero, name, None) or zero.fp32_groups_flat_partition
    return found


class _ZeroTarget:
    """ZeRO 1 and 2: a rank's cut of each flat group holds fragments of parameters."""

    def __init__(self, engine: Engine) -> None:
        self._zero = engine.optimizer
        self.parameters = _named_parameters(engine)
        if getattr(self._zero, "round_robin_gradients", False):
            raise CheckpointError(
                f"this run has {ROUND_ROBIN}: a checkpoint of another layout cannot be fitted to it\n"
                "  to do: take it out",
                everywhere=True,
            )

    def shape_of(self, parameter: nn.Parameter) -> Shape:
        return tuple(parameter.shape)

    def holds(self, parameter: nn.Parameter) -> bool:
        return getattr(parameter, "_hp_mapping", None) is not None

    def make_states(self, kinds: Iterable[str], step: float | None) -> None:
        kinds = tuple(kinds)
        for flat in _flat_groups(self._zero):
            _fresh_states(self._zero.optimizer, flat, kinds, step)
        # Fragments are views of the flat states: of those from now on.
        self._zero._hp_optimizer_states_linked = False
        self._zero._lazy_init_hp_params_optimizer_state()

    def set(self, parameter: nn.Parameter, state: str, value: Tensor) -> None:
        if state == VALUE:
            deepspeed.utils.safe_set_full_fp32_param(parameter, value)
        else:
            deepspeed.utils.safe_set_full_optimizer_state(parameter, value, state)

    def finish(self) -> None:
        self._zero.update_lp_params()


class _PartitionedTarget:
    """ZeRO 3: of every parameter each rank keeps an even cut, with zeros behind the last number."""

    def __init__(self, engine: Engine) -> None:
        self._zero = engine.optimizer
        self.parameters = _named_parameters(engine)

    def shape_of(self, parameter: nn.Parameter) -> Shape:
        return tuple(whole_shape(parameter))

    def holds(self, parameter: nn.Parameter) -> bool:
        return True

    def make_states(self, kinds: Iterable[str], step: float | None) -> None:
        kinds = tuple(kinds)
        for flat in self._zero.fp32_partitioned_groups_flat:
            _fresh_states(self._zero.optimizer, flat, kinds, step)

    def set(self, parameter: nn.Parameter, state: str, value: Tensor) -> None:
        # DeepSpeed's setter of whole tensors reads behind their end where the cuts are not even.
        length = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
        mine = value.flatten()[length * rank_among_holders(parameter) :][:length]
        mine = nn.functional.pad(mine, (0, length - mine.numel()))
        if state == VALUE:
            deepspeed.utils.safe_set_local_fp32_param(parameter, mine)
        else:
            deepspeed.utils.safe_set_local_optimizer_state(parameter, mine, state)

    def finish(self) -> None:
        kept = self._zero.persistent_parameters
        if kept:
            kept[0].partition(kept)
        for group in range(len(self._zero.fp32_partitioned_groups_flat)):
            self._zero._reassign_or_swap_out_partitioned_parameters(group)
        if kept:
            kept[0].all_gather(kept)
