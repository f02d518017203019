"""A run: how long, how often, what is kept and what is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from megatron.neox_arguments.typed import (
    Ignored,
    NonNegativeInt,
    NotYet,
    PositiveFloat,
    PositiveInt,
    Range,
    Refused,
)

_NO_STATE = Ignored("seeds follow from the step: there is no generator state to keep")


@dataclass(frozen=True)
class TrainingArgs:
    """Steps, evaluations, seeds, memory against time."""

    train_iters: NonNegativeInt | None = None
    """Optimizer steps of the run. Training needs this or `train_epochs`."""

    train_epochs: PositiveFloat | None = None
    """Instead of `train_iters`: how often to read the training data, fractions too; the steps follow. A
    blend is read until it has given as many samples as its members have in so many epochs."""

    eval_interval: PositiveInt = 1000
    """Steps between evaluations on the validation split."""

    eval_iters: NonNegativeInt = 100
    """Global batches of one evaluation; 0 evaluates nothing."""

    exit_interval: PositiveInt | None = None
    """End the run, with a checkpoint if `save` is set, at the next step that is a multiple of this."""

    seed: Annotated[int, Range(low=0, high=2**32 - 1)] = 1234
    """Seed of the weights, of the order of the samples and of dropout."""

    checkpoint_activations: bool = False
    """Keep only the input of each group of layers and compute the rest again in the backward pass."""

    checkpoint_num_layers: PositiveInt = 1
    """Layers per group of `checkpoint_activations`."""

    do_train: bool | None = None
    """false loads and evaluates without training. Default: train when `train_iters` is above 0."""

    do_valid: bool | None = None
    """false never touches the validation split. Default: evaluate when `eval_iters` is above 0."""

    do_test: bool | None = None
    """false never touches the test split. Default: evaluate it at the end when `eval_iters` is above 0."""

    distributed_backend: Annotated[Literal["nccl", "gloo"], NotYet(("mpi",))] | None = None
    """Library of the collectives. Default: by device, `nccl` on GPUs and `gloo` on CPUs."""


@dataclass(frozen=True)
class CheckpointingArgs:
    """What is saved when, and what is loaded."""

    save: str | None = None
    """Folder for checkpoints. Without it nothing is saved."""

    load: str | None = None
    """Folder to resume from. One without checkpoints starts a fresh run, and says so."""

    checkpoint_factor: Annotated[float, Range(low=0, open_low=True)] | None = None
    """`checkpoint_scale: linear`: steps between checkpoints. `log`: ratio of one saved step to the last.
    Default: save at the end only."""

    checkpoint_scale: Literal["linear", "log"] = "linear"
    """Spacing of the checkpoints."""

    extra_save_iters: tuple[NonNegativeInt, ...] | None = None
    """Steps to save at beside those of `checkpoint_factor`; 0 saves the untrained model."""

    keep_last_n_checkpoints: PositiveInt | None = None
    """Older checkpoints are deleted once the new one is whole. Default: keep all."""

    finetune: bool = False
    """Load weights only: step, samples, optimizer and schedule start afresh."""

    no_save_optim: bool = False
    """Save weights without optimizer state."""

    no_load_optim: bool = False
    """Leave the checkpoint's optimizer state alone."""

    reshape_on_load: bool = False
    """Fit a checkpoint of another layout (tensor-parallel, pipeline or data-parallel ranks, ZeRO stage,
    precision) to this run when it is loaded. Otherwise it is refused, with the command that turns it into a
    form for every layout; that form, and weights alone (`finetune`), need no such word."""

    no_save_rng: Annotated[bool, _NO_STATE] = False
    """Save no random-generator state."""

    no_load_rng: Annotated[bool, _NO_STATE] = False
    """Leave the checkpoint's random-generator state alone."""

    checkpoint_validation_with_forward_pass: Annotated[
        bool,
        Refused("not supported yet: a checkpoint's manifest is checked at load instead"),
    ] = False
    """Whether a loaded model is compared with logits that were saved with it."""

    s3_path: Annotated[str | None, Refused("not supported yet: take it out")] = None
    """Bucket that checkpoints are copied to."""

    s3_chunk_size: Annotated[PositiveInt, Ignored("has a meaning with s3_path only")] = 104857600
    """Bytes that are sent to it at once."""

    iteration: NonNegativeInt | None = None
    """Step of the checkpoint to load instead of the latest; set it with `--iteration`. In a file it is
    checked against the loaded step, not obeyed."""

    use_node_local_storage: bool = False
    """`save` and `load` are on disks of the nodes' own. Also `checkpoint: {use_node_local_storage: true}`."""

    def save_steps(self, train_iters: int) -> frozenset[int]:
        """The steps up to ``train_iters`` after which a checkpoint is due, whatever the run ends with."""
        steps = {step for step in self.extra_save_iters or () if step <= train_iters}
        if self.checkpoint_factor is None:
            return frozenset(steps)
        if self.checkpoint_scale == "linear":
            factor = int(self.checkpoint_factor)
            return frozenset(steps | set(range(factor, train_iters + 1, factor)))
        step = 1.0
        while step <= train_iters:
            steps.add(int(step))
            step = max(step * self.checkpoint_factor, int(step) + 1)
        return frozenset(steps)


@dataclass(frozen=True)
class LoggingArgs:
    """The log, and where metrics go."""

    log_interval: PositiveInt = 100
    """Steps between lines of the log."""

    log_dir: str | None = None
    """Folder of `metrics.jsonl`. Default: `save`."""

    tensorboard_dir: str | None = None
    """Folder of TensorBoard's event files. Without it none are written."""

    steps_per_print: PositiveInt = 10
    """Steps between DeepSpeed's own lines, which show at the level debug only; a pipeline has none."""

    wall_clock_breakdown: bool = False
    """DeepSpeed's timing of forward, backward and step; a pipeline has none."""

    peak_theoretical_tflops: PositiveFloat | None = None
    """What one device could compute, in 10^12 floating-point operations a second: the MFU of the log is
    the share of it that is used. Default: the maker's number, for GPUs that are known."""
