"""What the optimizer is given: parameter groups, learning rates, and the norm of the gradients."""

from megatron.optimizers.grad_norm import clip_gradients, global_grad_norm
from megatron.optimizers.lr_schedule import LRSchedule
from megatron.optimizers.param_groups import set_learning_rate, weight_decay_groups
from megatron.optimizers.pipeline_norm import sum_norms_of_stages

__all__ = [
    "LRSchedule",
    "clip_gradients",
    "global_grad_norm",
    "set_learning_rate",
    "sum_norms_of_stages",
    "weight_decay_groups",
]
