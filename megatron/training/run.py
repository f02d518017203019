"""One run from a checked configuration to its last line: set up, resume, train, evaluate, save."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from megatron.checkpointing import (
    CheckpointInfo,
    check_save_folder,
    claimed_save_folder,
    save_checkpoint,
)
from megatron.checkpointing.find_start import find_start
from megatron.checkpointing.others_work import refuse_to_replace
from megatron.data.datasets import DataRequest, DataSplits, build_datasets
from megatron.data.loader import StepLoader
from megatron.data.sources import order_of
from megatron.data.splits import samples_wanted
from megatron.logging import get_logger
from megatron.neox_arguments import BatchSizes, NeoXArgs
from megatron.neox_arguments.path_places import DATA_PATHS, told_where
from megatron.optimizers import LRSchedule
from megatron.runtime.device import pins_memory
from megatron.runtime.world import World
from megatron.training.batches import batches_of
from megatron.training.coordinates import check_coordinates, save_base_shapes
from megatron.training.evaluation_plan import EvaluationPlan
from megatron.training.load_start import load_start
from megatron.training.loop import Hooks, Plan, train
from megatron.training.needed_files import check_files_are_here
from megatron.training.report import Reporter, run_facts
from megatron.training.resume import (
    parametrization_facts,
    schedule_to_follow,
    stored_facts,
    stored_progress,
)
from megatron.training.run_state import RunState
from megatron.training.setup import (
    Parts,
    build_engine,
    build_model,
    build_parts,
    build_schedule,
    model_of,
    padding_id,
    step_settings,
    total_steps,
    with_train_iters,
)
from megatron.training.soft_prompt import prompt_facts

log = get_logger(__name__)


@dataclass(frozen=True)
class _Run:
    """Everything that a run holds once it is set up; only ``engine`` and ``state`` change."""

    args: NeoXArgs
    parts: Parts
    batch: BatchSizes
    data: DataSplits
    engine: Any
    schedule: LRSchedule
    state: RunState
    reporter: Reporter


def run_training(args: NeoXArgs, world: World) -> RunState:
    """Train as ``args`` say and return where the run ended. All ranks call this.

    Raises:
        NeoXError: something in the configuration, the data or the checkpoints stops the run.
    """
    args.require("train_iters|train_epochs", "data_path|train_data_paths", purpose="training")
    for note in args.notes:
        log.info("%s", note)
    if args.mup.save_base_shapes:
        save_base_shapes(args, world)
        return RunState()
    if args.mup.coord_check:
        check_coordinates(args, world)
        return RunState()
    check_files_are_here(args, world)
    settings = args.checkpointing
    if settings.save is None:
        return _set_up_and_train(args, world)
    with claimed_save_folder(
        settings.save, world=world, node_local=settings.use_node_local_storage
    ):
        return _set_up_and_train(args, world)


def _set_up_and_train(args: NeoXArgs, world: World) -> RunState:
    # The checkpoint is looked for before anything slow is done.
    with told_where(args, "load"):
        found = find_start(args, world)
    parts = build_parts(args, world)
    batch = args.batch_sizes(world.size)
    is_resumed = found is not None and found.manifest and not args.checkpointing.finetune
    resumed = found if is_resumed else None
    args = with_train_iters(args, batch, world)
    _check_saving(args, found, world)
    with told_where(args, *DATA_PATHS):
        data = _build_data(args, parts, batch, resumed)
    model = build_model(args, parts, partitioned=True)
    engine = build_engine(args, parts, model)
    schedule = schedule_to_follow(resumed, build_schedule(args), args.lr_schedule)
    with told_where(args, "load"):
        state = load_start(args, parts, batch, engine, data, found)
    reporter = Reporter.open(args, parts, batch, state)
    run = _Run(args, parts, batch, data, engine, schedule, state, reporter)
    try:
        reporter.facts(run_facts(args, parts, batch, model, data))
        ending, is_unevaluated = _train(run)
        if is_unevaluated:
            _evaluate_at_the_end(run)
        if ending:
            log.info("%s", ending)
    finally:
        reporter.close()
    return state


def _check_saving(args: NeoXArgs, found: CheckpointInfo | None, world: World) -> None:
    """Stop a run that is to train on from ``found`` where its checkpoints would replace those of another one,
    or a node cannot write them.

    One that only evaluates may have a folder that nobody can write. All ranks call this.
    """
    settings = args.checkpointing
    begins = 0 if found is None or settings.finetune else found.step
    if settings.save is None or args.training.do_train is False or begins >= total_steps(args):
        return
    with told_where(args, "save"):
        refuse_to_replace(args, found, world, train_iters=total_steps(args))
        check_save_folder(settings.save, world=world)


def _build_data(
    args: NeoXArgs, parts: Parts, batch: BatchSizes, resumed: CheckpointInfo | None
) -> DataSplits:
    training = args.training
    wanted = samples_wanted(
        total_steps(args),
        training.eval_interval,
        training.eval_iters,
        batch.global_batch_size,
    )
    if resumed is not None and order_of(args.data) == "epochs":
        # What is still to come follows what was read, which another batch size may have made more.
        state = RunState.from_dict(resumed.state)
        to_come = max(0, total_steps(args) - state.step) * batch.global_batch_size
        wanted = replace(wanted, train=state.consumed_samples + to_come)
    return build_datasets(
        DataRequest(
            args.data,
            seq_length=args.model.seq_length,
            seed=training.seed,
            wanted=wanted,
            vocab_size=parts.tokenizer.vocab_size,
            data_parallel_size=batch.data_parallel_size,
            train_epochs=training.train_epochs,
            pad_id=padding_id(args, parts.tokenizer),
            progress=stored_progress(resumed),
        ),
        parts.world,
    )


def _train(run: _Run) -> tuple[str, bool]:
    """Train to the end: what to say last, and whether the run is to be evaluated there before."""
    args, state, total = run.args, run.state, total_steps(run.args)
    if args.training.do_train is False:
        return "", True
    if state.step >= total:
        # The last save comes before the last evaluation: a kill in between has left it undone.
        # Of the two evaluations there, the test is the last.
        last = "test" if _evaluation(run).tests else "validation"
        is_unevaluated = state.step == total and not run.reporter.was_evaluated(last, state.step)
        return f"the run is done: step {state.step:,} of {total:,} (train_iters)", is_unevaluated
    evaluation = _evaluation(run)
    if state.step == 0 and 0 in args.checkpointing.save_steps(total):
        _save(run, state)

    with _train_loader(run) as loader:
        why = train(
            run.engine,
            loader,
            step_settings(args, run.parts),
            run.schedule,
            state,
            _plan(args),
            Hooks(
                log=run.reporter.logged,
                evaluate=lambda at: _validate(run, evaluation, at),
                save=lambda at: _save(run, at),
            ),
        )
    return f"{why} after step {state.step:,} of {total:,}", why == "finished"


def _validate(run: _Run, evaluation: EvaluationPlan, at: RunState) -> None:
    """The loss on the validation split, if there is one."""
    if evaluation.validates:
        run.reporter.evaluation_starts()
        run.reporter.evaluated("validation", at, evaluation.validation_loss(at.step))


def _evaluate_at_the_end(run: _Run) -> None:
    """The losses on both held-out splits, as far as there are any."""
    evaluation = _evaluation(run)
    _validate(run, evaluation, run.state)
    if evaluation.tests:
        run.reporter.evaluation_starts()
        run.reporter.evaluated("test", run.state, evaluation.test_loss())


def _evaluation(run: _Run) -> EvaluationPlan:
    return EvaluationPlan(run.args, run.parts, run.batch, run.data, model_of(run.engine))


def _train_loader(run: _Run) -> StepLoader:
    """The training batches that are still to come."""
    dataset = run.data.train
    assert dataset is not None, "train_iters is above 0"
    return batches_of(
        dataset,
        run.args,
        run.parts,
        run.batch,
        first_sample=run.state.consumed_samples,
        num_steps=total_steps(run.args) - run.state.step,
        num_workers=run.args.data.num_workers,
        blank=not model_of(run.engine).reads_data,
        pin_memory=pins_memory(run.parts.device),
        check_files=run.data.check_files,
    )


def _plan(args: NeoXArgs) -> Plan:
    total = total_steps(args)
    saves = args.checkpointing.save_steps(total)
    return Plan(
        train_iters=total,
        log_interval=args.logging.log_interval,
        evaluates=lambda step: step % args.training.eval_interval == 0,
        saves=lambda step: step in saves,
        exit_interval=args.training.exit_interval,
    )


def _save(run: _Run, state: RunState) -> None:
    args, settings = run.args, run.args.checkpointing
    if settings.save is None:
        return
    started = time.perf_counter()
    folder = save_checkpoint(
        run.engine,
        save_dir=settings.save,
        step=state.step,
        state=state.as_dict()
        | stored_facts(run.data, run.schedule, run.parts, run.batch, state.consumed_samples)
        | parametrization_facts(args, run.parts.padded_vocab)
        | prompt_facts(args.variants.soft_prompt),
        world=run.parts.world,
        config_files=args.files,
        config_flat=args.flat(),
        layout=_layout(args, run.parts),
        node_local=settings.use_node_local_storage,
        keep_last=settings.keep_last_n_checkpoints,
        no_save_optim=settings.no_save_optim,
        config_hash=args.hash(),
    )
    log.info("saved %s in %.1f s", folder, time.perf_counter() - started)
    if run.parts.world.is_local_first:
        run.data.check_files()


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
