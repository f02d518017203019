"""Services that receive metrics, and measurements beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from megatron.neox_arguments.typed import Ignored, NonNegativeInt, PositiveInt, Refused

_NOT_SENT = Ignored("metrics go to metrics.jsonl and TensorBoard for now")
_NOT_WRITTEN = Ignored("this diagnostic is not written yet")
_WITH_NOISE_SCALE = Ignored("has a meaning with log_gradient_noise_scale only")
_WITH_PROFILE = Ignored("has a meaning with profile only")


@dataclass(frozen=True)
class TrackerArgs:
    """Weights & Biases, and Comet. Their API keys belong into the environment, never into a file."""

    use_wandb: Annotated[bool | None, _NOT_SENT] = None
    """Whether metrics go to Weights & Biases."""

    wandb_group: Annotated[str | None, _NOT_SENT] = None
    """Group of the run there."""

    wandb_run_name: Annotated[str | None, _NOT_SENT] = None
    """Name of the run there."""

    wandb_team: Annotated[str | None, _NOT_SENT] = None
    """Team that the run belongs to there."""

    wandb_project: Annotated[str, _NOT_SENT] = "neox"
    """Project of the run there."""

    wandb_host: Annotated[str, _NOT_SENT] = "https://api.wandb.ai"
    """Address of the service."""

    wandb_init_all_ranks: Annotated[bool, _NOT_SENT] = False
    """Whether every rank is a run there, not only the first."""

    use_comet: Annotated[bool | None, _NOT_SENT] = None
    """Whether metrics go to Comet."""

    comet_workspace: Annotated[str | None, _NOT_SENT] = None
    """Workspace of the experiment there."""

    comet_project: Annotated[str | None, _NOT_SENT] = None
    """Project of the experiment there."""

    comet_experiment_name: Annotated[str | None, _NOT_SENT] = None
    """Name of the experiment there."""

    comet_tags: Annotated[tuple[str, ...] | None, _NOT_SENT] = None
    """Tags of the experiment there."""

    comet_others: Annotated[dict[str, Any] | None, _NOT_SENT] = None
    """More facts to keep there."""

    comet_experiment: Annotated[Any, _NOT_SENT] = None
    """The running experiment's object in GPT-NeoX; nothing to write in a file."""


@dataclass(frozen=True)
class DiagnosticsArgs:
    """What a run measures beside loss and speed."""

    log_grad_norm: Annotated[
        bool, Ignored("the norm of the gradient is always logged", off=(True,))
    ] = False
    """Whether the gradient's norm is logged."""

    log_grad_pct_zeros: Annotated[bool, _NOT_WRITTEN] = False
    """Whether the share of zeros in each gradient is logged."""

    log_param_norm: Annotated[bool, _NOT_WRITTEN] = False
    """Whether the norm of each weight is logged."""

    log_optimizer_states: Annotated[bool, _NOT_WRITTEN] = False
    """Whether norms of the optimizer's state are logged."""

    log_gradient_noise_scale: Annotated[bool, _NOT_WRITTEN] = False
    """Whether the gradient's noise scale (arXiv:1812.06162) is logged."""

    gradient_noise_scale_n_batches: Annotated[PositiveInt, _WITH_NOISE_SCALE] = 5
    """Batches that one estimate of the noise scale takes."""

    gradient_noise_scale_cpu_offload: Annotated[bool, _WITH_NOISE_SCALE] = False
    """Whether the gradients it needs are kept on the host."""

    char_level_ppl: Annotated[bool, Ignored("eval.py reports bits per byte")] = False
    """Whether evaluation reports perplexity per character."""

    profile: Annotated[bool, Refused("not supported yet: take it out")] = False
    """Whether PyTorch's profiler records steps."""

    profile_step_start: Annotated[NonNegativeInt, _WITH_PROFILE] = 10
    """First step that is recorded."""

    profile_step_stop: Annotated[NonNegativeInt, _WITH_PROFILE] = 12
    """Step at which recording ends."""

    memory_profiling: Annotated[bool, Refused("not supported yet: take it out")] = False
    """Whether PyTorch's record of allocations is written."""

    memory_profiling_path: Annotated[
        str | None, Ignored("has a meaning with memory_profiling only")
    ] = None
    """Folder for it."""
