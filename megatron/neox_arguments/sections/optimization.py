"""The optimizer, and the learning rate over the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from megatron.neox_arguments.typed import (
    NonNegativeFloat,
    NonNegativeInt,
    NotYet,
    Refused,
    Share,
)

# What GPT-NeoX fills in where `optimizer.params` is silent.
DEFAULT_LR = 1e-3
DEFAULT_BETAS = (0.9, 0.999)
DEFAULT_EPS = 1e-8


@dataclass(frozen=True)
class OptimArgs:
    """Optimizer, weight decay, clipping and ZeRO."""

    optimizer: dict[str, Any] | None = None
    """The optimizer in DeepSpeed's form, `{type: Adam, params: {lr: ..., betas: [...], eps: ...}}`.
    Adam means decoupled weight decay (AdamW); `adam_w_mode: false` couples it. Default: Adam, lr 0.001."""

    optimizer_type: Annotated[
        Literal["adam", "adamw", "sgd"],
        NotYet(("onebitadam", "cpu_adam", "cpu_torch_adam", "sm3", "madgrad_wd", "lion")),
    ] = "adam"
    """Short for `optimizer.type`, in small letters; the two must agree."""

    lr: NonNegativeFloat = DEFAULT_LR
    """Short for `optimizer.params.lr`: the learning rate after warm-up."""

    weight_decay: NonNegativeFloat = 0.1
    """Weight decay of matrices; biases and norms have none. Also taken from
    `optimizer.params.weight_decay`, as DeepSpeed's files write it."""

    gradient_clipping: NonNegativeFloat = 1.0
    """Largest global norm of the gradient; larger ones are scaled down to it. 0 switches clipping off.
    Always written out for DeepSpeed, whose own default is 0. Also known as `clip_grad`."""

    zero_optimization: dict[str, Any] | None = None
    """DeepSpeed's ZeRO, handed on as written. Each data-parallel rank keeps a share: from stage 1 on of
    the optimizer's state, from 2 on of the gradients, with 3 of the weights too, which are gathered for
    each layer's pass; 2 and 3 not with a pipeline. Half precision runs stage 0 as stage 1, whose numbers
    are right where DeepSpeed's stage 0 is not."""

    zero_stage: NonNegativeInt = 0
    """Short for `zero_optimization.stage`. In the checked configuration: the stage that runs."""

    zero_reduce_scatter: bool | None = None
    """Short for `zero_optimization.reduce_scatter`: each rank gets the gradients of its own share only."""

    zero_contiguous_gradients: bool | None = None
    """Short for `zero_optimization.contiguous_gradients`: gradients are copied into one block of memory."""

    zero_reduce_bucket_size: NonNegativeInt | None = None
    """Short for `zero_optimization.reduce_bucket_size`: numbers that are reduced at once."""

    zero_allgather_bucket_size: NonNegativeInt | None = None
    """Short for `zero_optimization.allgather_bucket_size`: numbers that are gathered at once."""

    use_bnb_optimizer: Annotated[
        bool, Refused("bitsandbytes is not used here: take it out, and choose adam, adamw or sgd")
    ] = False
    """Whether Adam is that of bitsandbytes, with its state in 8 bits."""

    @property
    def name(self) -> str:
        """``adam``, ``adamw`` or ``sgd``."""
        return self.optimizer_type

    @property
    def params(self) -> dict[str, Any]:
        """``optimizer.params`` as written."""
        params: dict[str, Any] = (self.optimizer or {}).get("params") or {}
        return params

    def offload_device(self, what: str) -> str:
        """Where ``offload_optimizer`` or ``offload_param`` puts its part: ``cpu``, ``nvme`` or ``none``."""
        group = self.zero_optimization or {}
        written = group.get(what) or {}
        older = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}[what]
        return str(written.get("device", "cpu" if group.get(older) else "none"))

    @property
    def offloaded(self) -> tuple[str, ...]:
        """What lies in the host's memory: ``optimizer``, ``weights``, both or nothing."""
        parts = {"optimizer": "offload_optimizer", "weights": "offload_param"}
        return tuple(part for part, key in parts.items() if self.offload_device(key) == "cpu")

    @property
    def betas(self) -> tuple[float, float]:
        """Adam's decay rates of the first and second moment."""
        first, second = self.params.get("betas", DEFAULT_BETAS)
        return float(first), float(second)

    @property
    def eps(self) -> float:
        """Adam's term against division by zero."""
        return float(self.params.get("eps", DEFAULT_EPS))


@dataclass(frozen=True)
class LRScheduleArgs:
    """Warm-up and decay of the learning rate."""

    lr_decay_style: Literal["constant", "linear", "cosine", "exponential"] = "linear"
    """Curve from `lr` down to `min_lr` after warm-up. `linear` gets there at the end of the schedule
    (GPT-NeoX's heads for 0 and stops early, at `min_lr`), `exponential` stops at half of `lr`."""

    lr_decay_iters: NonNegativeInt | None = None
    """Steps over which the learning rate decays, warm-up included. Default: `lr_decay_fraction` x
    `train_iters`, else `train_iters`."""

    lr_decay_fraction: Share | None = None
    """Share of `train_iters` over which the learning rate decays; only without `lr_decay_iters`."""

    min_lr: NonNegativeFloat = 0.0
    """The learning rate never falls below this."""

    warmup: Share = 0.01
    """Share of the decay steps during which the learning rate rises."""

    override_lr_scheduler: bool = False
    """On resume: use this file's schedule, whatever the checkpoint says."""

    use_checkpoint_lr_scheduler: bool = False
    """On resume: use the checkpoint's schedule, whatever this file says."""

    def decay_steps(self, train_iters: int) -> int:
        """Steps of the whole schedule in a run of ``train_iters``, warm-up included; 1 at least."""
        if self.lr_decay_iters is not None:
            return max(1, self.lr_decay_iters)
        share = 1.0 if self.lr_decay_fraction is None else self.lr_decay_fraction
        return max(1, int(share * train_iters))
