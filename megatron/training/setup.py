"""From a checked configuration to the parts of a run: tokenizer, layout, model, engine.

Training, evaluation and generation all build their parts here, so that a checkpoint means the same
model everywhere.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from megatron.data.boundaries import Boundaries
from megatron.data.run_length import run_length
from megatron.errors import ConfigError
from megatron.logging import get_logger
from megatron.losses.pipeline import PipelineLoss
from megatron.model import GPT2Model, parametrization_of
from megatron.model.pipeline import GPT2ModelPipe
from megatron.monitor.pipeline_facts import layers_of_stages
from megatron.mpu import ParallelGroups
from megatron.neox_arguments import BatchSizes, NeoXArgs
from megatron.neox_arguments.path_places import DATA_PATHS, TOKENIZER_PATHS, told_where
from megatron.optimizers import LRSchedule, sum_norms_of_stages, weight_decay_groups
from megatron.runtime.device import local_device
from megatron.runtime.partitioned import partitioner, register_borrowed
from megatron.runtime.stock_deepspeed import deepspeed, is_prebuilt
from megatron.runtime.world import World
from megatron.tokenizer import Tokenizer, build_tokenizer, padded_vocab_size
from megatron.training.soft_prompt import train_prompt_alone
from megatron.training.step import StepSettings

log = get_logger(__name__)

DTYPES = {"fp32": torch.float32, "bfloat16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Parts:
    """What every kind of run stands on.

    Attributes:
        world: this process among all.
        groups: the parallel layout.
        device: where this rank computes.
        tokenizer: text to ids and back.
        padded_vocab: rows of the embedding, at least ``tokenizer.vocab_size``.
    """

    world: World
    groups: ParallelGroups
    device: torch.device
    tokenizer: Tokenizer
    padded_vocab: int


def build_parts(args: NeoXArgs, world: World) -> Parts:
    """The parts that need no weights.

    Raises:
        NeoXError: a vocabulary file is missing or broken, or the layout does not fit the world.
    """
    with told_where(args, *TOKENIZER_PATHS):
        tokenizer = build_tokenizer(
            args.tokenizer.tokenizer_type, args.tokenizer.vocab_file, args.tokenizer.merge_file
        )
    model_parallel = args.parallelism.model_parallel_size
    padded = padded_vocab_size(
        tokenizer.vocab_size, args.model.make_vocab_size_divisible_by, model_parallel
    )
    args.check_runtime(world_size=world.size, padded_vocab_size=padded)
    return Parts(
        world=world,
        groups=ParallelGroups(
            world,
            model_parallel_size=model_parallel,
            pipe_parallel_size=max(1, args.parallelism.pipe_parallel_size),
            context_parallel_size=args.parallelism.context_parallel_size,
            sequence_parallel=args.parallelism.sequence_parallel,
            num_kv_heads=args.model.kv_heads,
        ),
        device=local_device(world.local_rank),
        tokenizer=tokenizer,
        padded_vocab=padded,
    )


def padding_id(args: NeoXArgs, tokenizer: Tokenizer) -> int:
    """What fills samples that are not full: the padding token, else the end of a document.

    Raises:
        TokenizerError: there are such samples, and the vocabulary has neither.
    """
    if args.data.pack_impl == "packed":
        return 0  # all samples are full
    return tokenizer.eod if tokenizer.pad is None else tokenizer.pad


def build_model(args: NeoXArgs, parts: Parts, *, partitioned: bool = False) -> GPT2Model:
    """The model with its initial weights, in the run's precision on its device; in a pipeline, this
    rank's stage of it.

    Weights are drawn in fp32 on the CPU, a layer at a time, and brought where they belong before the next:
    the host never holds more than one layer for each of its ranks.

    With ``use_mup`` the file of the base model's shapes is read.

    With ``partitioned`` a model for ZeRO stage 3 is made as this rank will hold it: its part of each layer.
    The values are the same.
    """
    dtype = DTYPES[args.model.precision]
    place_layer: Callable[[nn.Module], object] = partial(
        nn.Module.to, device=parts.device, dtype=dtype
    )
    if partitioned and args.optim.zero_stage == 3:
        place_layer = partitioner(args.deepspeed_config(parts.world.size), parts.groups, dtype)
    model = GPT2Model(
        args.model,
        padded_vocab_size=parts.padded_vocab,
        groups=parts.groups,
        seed=args.training.seed,
        checkpoint_activations=args.training.checkpoint_activations,
        checkpoint_num_layers=args.training.checkpoint_num_layers,
        partition_activations=args.recomputation.partition_activations,
        checkpoint_in_cpu=args.recomputation.checkpoint_in_cpu,
        place_layer=place_layer,
        layers=layers_of_stages(args, parts.padded_vocab)[parts.groups.get_pipe_parallel_rank()],
        parametrization=parametrization_of(args.mup, args.model, parts.padded_vocab),
        soft_prompt=args.variants.soft_prompt,
    )
    if args.variants.soft_prompt is not None:
        train_prompt_alone(model)
    return model


def build_engine(args: NeoXArgs, parts: Parts, model: GPT2Model) -> Any:
    """DeepSpeed's engine around ``model``: it holds the optimizer, ZeRO and the gradient reduction.

    The learning rate is set before every step (see :class:`LRSchedule`), so the engine gets no
    scheduler.

    Raises:
        ConfigError: the optimizer would first have to be compiled.
    """
    _require_built_optimizer(args)
    pipe = None
    if args.parallelism.pipe_parallel_size > 0:
        loss = PipelineLoss(parts.groups, z_loss=args.alignment.z_loss)
        pipe = GPT2ModelPipe(model, loss, Boundaries.of(args.data))
    # One of its optimizers, for bf16 with gradients in fp32, prints what memory there is.
    with contextlib.redirect_stdout(io.StringIO()):
        engine, _, _, _ = deepspeed.initialize(
            model=pipe or model,
            model_parameters=weight_decay_groups(
                model, args.optim.weight_decay, model.parametrization
            ),
            config=args.deepspeed_config(parts.world.size),
            # A pipeline's engine has groups of its own, of the same ranks.
            mpu=None if pipe else parts.groups,
            dist_init_required=False,
        )
    # Stage 0 in fp32 is clipped by train_step: see megatron.optimizers.grad_norm.
    engine.clip_fp32_gradients = lambda: None
    sums_over_mpu = isinstance(engine.optimizer, deepspeed.runtime.bf16_optimizer.BF16_Optimizer)
    if sums_over_mpu and pipe is None and parts.groups.get_model_parallel_group() is None:
        # It sums the norm over this group, and takes None for all ranks: those of other samples too.
        engine.optimizer.mpu = None
    if pipe is not None:
        engine.set_has_attention_mask(False)
        sum_norms_of_stages(engine.optimizer)
    for borrower, parameter in model.borrowed_parameters():
        register_borrowed(borrower, parameter)
    return engine


def step_settings(args: NeoXArgs, parts: Parts) -> StepSettings:
    """What the run's steps need to know."""
    model = args.model
    return StepSettings(
        device=parts.device,
        groups=parts.groups,
        seed=args.training.seed,
        has_dropout=model.hidden_dropout > 0 or model.attention_dropout > 0,
        zero_stage=args.optim.zero_stage,
        z_loss=args.alignment.z_loss,
    )


def model_of(engine: Any) -> GPT2Model:
    """The model under ``engine``, or its stage of it."""
    model = engine.module.stage if isinstance(engine.module, GPT2ModelPipe) else engine.module
    assert isinstance(model, GPT2Model)
    return model


def _require_built_optimizer(args: NeoXArgs) -> None:
    own_adam = args.optim.name != "sgd" and args.optim.params.get("torch_adam") is False
    if own_adam and "optimizer" in args.optim.offloaded and not is_prebuilt("cpu_adam"):
        raise ConfigError(
            "optimizer.params.torch_adam is false and the optimizer is offloaded\n"
            "  found: a DeepSpeed that was installed without its own Adam for the host (cpu_adam), and "
            "would compile it now\n"
            "  to do: take torch_adam out, for PyTorch's Adam, or install DeepSpeed with "
            "DS_BUILD_CPU_ADAM=1",
            everywhere=True,
        )


def with_train_iters(args: NeoXArgs, batch: BatchSizes, world: World) -> NeoXArgs:
    """``args`` with the ``train_iters`` that ``train_epochs`` stand for. All ranks call.

    Raises:
        DataError: the data is missing or damaged, or not enough for one step.
    """
    if args.training.train_epochs is None:
        return args
    with told_where(args, *DATA_PATHS):
        length = run_length(
            args.data,
            epochs=args.training.train_epochs,
            seq_length=args.model.seq_length,
            seed=args.training.seed,
            global_batch_size=batch.global_batch_size,
            world=world,
        )
    if world.is_first:
        log.info("%s", length.explain())
    return replace(args, training=replace(args.training, train_iters=length.steps))


def total_steps(args: NeoXArgs) -> int:
    """``train_iters`` of a run that trains: given, or found by :func:`with_train_iters`."""
    steps = args.training.train_iters
    assert steps is not None
    return steps


def build_schedule(args: NeoXArgs) -> LRSchedule:
    """The learning rates of the run."""
    return LRSchedule.of(args.lr_schedule, lr=args.optim.lr, train_iters=total_steps(args))
