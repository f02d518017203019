"""One run from a checked configuration to its last line: set up, resume, train, evaluate, save."""

from __future__ import annotations

import time
from typing import Any

from megatron.checkpointing import (
    CheckpointInfo,
    find_checkpoint,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from megatron.data.datasets import DataSplits, build_datasets
from megatron.data.loader import build_step_loader
from megatron.data.splits import samples_wanted
from megatron.logging import get_logger
from megatron.neox_arguments import NeoXArgs
from megatron.optimizers import LRSchedule
from megatron.runtime.world import World
from megatron.training.evaluation_plan import EvaluationPlan
from megatron.training.loop import Hooks, LoggedStep, Plan, train
from megatron.training.report import Reporter, run_facts
from megatron.training.resume import (
    check_same_data,
    check_same_schedule,
    schedule_to_follow,
    stored_facts,
)
from megatron.training.run_state import RunState
from megatron.training.setup import Parts, build_engine, build_model, build_parts, build_schedule
from megatron.training.step import StepSettings

log = get_logger(__name__)


def run_training(args: NeoXArgs, world: World) -> RunState:
    """Train as ``args`` say and return where the run ended. All ranks call this.

    Raises:
        NeoXError: something in the configuration, the data or the checkpoints stops the run.
    """
    args.require("train_iters", "data_path", purpose="training")
    for note in args.notes:
        log.info("%s", note)
    found = _find(args, world)
    parts = build_parts(args, world)
    data = _build_data(args, parts)
    model = build_model(args, parts)
    engine = build_engine(args, parts, model)
    schedule = schedule_to_follow(found, build_schedule(args), args.lr_schedule)
    state = _load(args, world, engine, data, found)
    reporter = Reporter.open(args, parts, model, state)
    try:
        reporter.facts(run_facts(args, parts, model, data))
        _train(args, parts, data, engine, schedule, state, reporter)
    finally:
        reporter.close()
    return state


def _find(args: NeoXArgs, world: World) -> CheckpointInfo | None:
    """The checkpoint to start from, looked for before anything slow is done."""
    load = args.checkpointing.load
    if load is None:
        return None
    found = find_checkpoint(
        load, args.checkpointing.iteration, world=world, foreign=args.checkpointing.finetune
    )
    if found is None:
        log.info("no checkpoint in %s yet: starting from step 0", load)
    return found


def _build_data(args: NeoXArgs, parts: Parts) -> DataSplits:
    training = args.training
    return build_datasets(
        args.data,
        seq_length=args.model.seq_length,
        seed=training.seed,
        wanted=samples_wanted(
            training.train_iters,
            training.eval_interval,
            training.eval_iters,
            parts.batch.global_batch_size,
        ),
        world=parts.world,
        vocab_size=parts.tokenizer.vocab_size,
    )


def _load(
    args: NeoXArgs, world: World, engine: Any, data: DataSplits, found: CheckpointInfo | None
) -> RunState:
    """Fill the engine from ``found`` and return the state to go on from."""
    if found is None:
        return RunState()
    if args.checkpointing.finetune:
        load_weights(engine.module, found, engine=engine)
        log.info("finetune: weights of %s; step, optimizer and schedule start afresh", found.path)
        return RunState()
    check_same_data(found, data.index_keys, allowed=args.data.allow_data_change)
    check_same_schedule(found, build_schedule(args), args.lr_schedule)
    stored = load_checkpoint(
        engine, found, world=world, load_optim=not args.checkpointing.no_load_optim
    )
    state = RunState.from_dict(stored)
    log.info(
        "resuming from %s: step %s, %s samples consumed",
        found.path,
        f"{state.step:,}",
        f"{state.consumed_samples:,}",
    )
    return state


def _train(
    args: NeoXArgs,
    parts: Parts,
    data: DataSplits,
    engine: Any,
    schedule: LRSchedule,
    state: RunState,
    reporter: Reporter,
) -> None:
    evaluation = EvaluationPlan(args, parts, data, engine.module)

    def evaluate(at: RunState) -> None:
        if evaluation.validates:
            reporter.evaluation_starts()
            reporter.evaluated("validation", at, evaluation.validation_loss(at.step))

    def save(at: RunState) -> None:
        if args.checkpointing.save is not None:
            _save(args, parts, data, engine, schedule, at)

    total = args.training.train_iters
    if state.step >= total:
        log.info("the run is done: step %s of %s (train_iters)", f"{state.step:,}", f"{total:,}")
        return
    if args.training.do_train is not False:
        loader = build_step_loader(
            data.train,
            first_sample=state.consumed_samples,
            num_steps=total - state.step,
            batch=parts.batch,
            data_rank=parts.groups.get_data_parallel_rank(),
            num_workers=args.data.num_workers,
            eod_id=parts.tokenizer.eod if args.data.eod_mask_loss else None,
        )
        try:
            why = train(
                engine,
                loader,
                _step_settings(args, parts),
                schedule,
                state,
                _plan(args, evaluation),
                Hooks(reporter.logged, evaluate, save),
            )
        finally:
            loader.close()
        log.info("%s after step %s of %s", why, f"{state.step:,}", f"{total:,}")
        if why != "finished":
            return
    evaluate(state)
    if evaluation.tests:
        reporter.evaluation_starts()
        reporter.evaluated("test", state, evaluation.test_loss())


def _step_settings(args: NeoXArgs, parts: Parts) -> StepSettings:
    return StepSettings(
        device=parts.device,
        groups=parts.groups,
        seed=args.training.seed,
        has_dropout=args.model.hidden_dropout > 0 or args.model.attention_dropout > 0,
        zero_stage=args.optim.zero_stage,
    )


def _plan(args: NeoXArgs, evaluation: EvaluationPlan) -> Plan:
    saves = args.checkpointing.save_steps(args.training.train_iters)
    return Plan(
        train_iters=args.training.train_iters,
        log_interval=args.logging.log_interval,
        evaluates=lambda step: step % args.training.eval_interval == 0,
        saves=lambda step: step in saves,
        exit_interval=args.training.exit_interval,
    )


def _save(
    args: NeoXArgs,
    parts: Parts,
    data: DataSplits,
    engine: Any,
    schedule: LRSchedule,
    state: RunState,
) -> None:
    settings = args.checkpointing
    assert settings.save is not None
    started = time.perf_counter()
    folder = save_checkpoint(
        engine,
        save_dir=settings.save,
        step=state.step,
        state=state.as_dict() | stored_facts(data.index_keys, schedule, parts),
        world=parts.world,
        config_files=args.files,
        config_flat=args.flat(),
        layout=_layout(args, parts),
        node_local=settings.use_node_local_storage,
        keep_last=settings.keep_last_n_checkpoints,
        no_save_optim=settings.no_save_optim,
        config_hash=args.hash(),
    )
    log.info("saved %s in %.1f s", folder, time.perf_counter() - started)


def _layout(args: NeoXArgs, parts: Parts) -> dict[str, int | str]:
    grid = parts.groups.grid
    return {
        "pipe_parallel_size": args.parallelism.pipe_parallel_size,
        "data_parallel_size": grid.data,
        "context_parallel_size": grid.context,
        "model_parallel_size": grid.model,
        "world_size": parts.world.size,
        "zero_stage": args.optim.zero_stage,
        "precision": args.model.precision,
    }


__all__ = ["LoggedStep", "run_training"]
