"""What a run starts from: the checkpoint that was looked for first, loaded once the engine stands."""

from __future__ import annotations

from typing import Any

from megatron.checkpointing import (
    CheckpointInfo,
    Reshaping,
    load_checkpoint,
    load_weights,
    refresh_master_weights,
)
from megatron.checkpointing.same_model import check_same_model
from megatron.checkpointing.same_schedule import check_same_schedule
from megatron.data.datasets import DataSplits
from megatron.logging import get_logger
from megatron.neox_arguments import BatchSizes, NeoXArgs
from megatron.training.resume import (
    check_same_data,
    check_same_parametrization,
    note_changed_blend,
    note_other_batch,
    note_other_tokenizer,
    stored_progress,
)
from megatron.training.run_state import RunState
from megatron.training.setup import Parts, build_schedule, model_of
from megatron.training.soft_prompt import PROMPT, has_prompt, require_weights, start_from_text

log = get_logger(__name__)


def load_start(
    args: NeoXArgs,
    parts: Parts,
    batch: BatchSizes,
    engine: Any,
    data: DataSplits,
    found: CheckpointInfo | None,
) -> RunState:
    """Fill the engine from ``found`` and return the state to go on from. All ranks call this.

    Raises:
        CheckpointError: the checkpoint does not fit the run: its model, data, schedule or layout.
    """
    prompt = args.variants.soft_prompt
    require_weights(prompt, found)
    if found is None:
        return RunState()
    note_other_tokenizer(found, parts)
    check_same_model(found, args.model, finetune=args.checkpointing.finetune)
    check_same_parametrization(found, args, parts.padded_vocab)
    if args.checkpointing.finetune or found.manifest is None:
        starts_prompt = prompt is not None and not has_prompt(found)
        load_weights(
            model_of(engine),
            found,
            model_rank=parts.groups.get_model_parallel_rank(),
            model_parallel_size=parts.groups.get_model_parallel_world_size(),
            model=args.model,
            vocab_size=parts.tokenizer.vocab_size,
            engine=engine,
            world=parts.world,
            without=(PROMPT,) if starts_prompt else (),
        )
        if prompt is not None and starts_prompt:
            start_from_text(model_of(engine), prompt, parts.tokenizer)
            refresh_master_weights(engine)
        if not args.checkpointing.finetune:
            return _after_neox(found, batch, engine, is_first=parts.world.is_first)
        log.info("finetune: weights of %s; step, optimizer and schedule start afresh", found.path)
        return RunState()
    check_same_data(found, data, allowed=args.data.allow_data_change)
    if parts.world.is_first:
        note_changed_blend(data, stored_progress(found))
        note_other_batch(found, batch)
    check_same_schedule(found, build_schedule(args).as_dict(), args.lr_schedule)
    stored = load_checkpoint(
        engine,
        found,
        world=parts.world,
        load_optim=not args.checkpointing.no_load_optim,
        reshaping=Reshaping(args.model, parts.groups, args.checkpointing.reshape_on_load),
    )
    state = RunState.from_dict(stored)
    log.info(
        "resuming from %s: step %s, %s samples consumed",
        found.path,
        f"{state.step:,}",
        f"{state.consumed_samples:,}",
    )
    return state


def _after_neox(
    found: CheckpointInfo, batch: BatchSizes, engine: Any, *, is_first: bool
) -> RunState:
    """Where a run goes on whose weights GPT-NeoX has trained up to the step that the folder tells."""
    state = RunState(found.step, found.step * batch.global_batch_size)
    engine.global_steps = found.step
    if is_first:
        log.warning(
            "%s is GPT-NeoX's: its weights and its step came along: %s, at which %s samples have been read "
            "if train_batch_size was the same; the optimizer's averages, the loss scale and generator "
            "states did not: Adam starts afresh (finetune: true would start at step 0)",
            found.path,
            f"{state.step:,}",
            f"{state.consumed_samples:,}",
        )
    return state
