"""The training loop: read a step's batch, train on it, and now and then log, evaluate, save, stop.

Everything that happens is a function of the number of steps done, which is 1 after the first one;
so a resumed run logs, evaluates and saves at the same steps as one that never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from megatron.data.step_batch import StepBatch
from megatron.optimizers import LRSchedule
from megatron.runtime.signals import StopRequest
from megatron.runtime.timers import Stopwatch, timed
from megatron.training.pipeline_step import step_of
from megatron.training.run_state import RunState
from megatron.training.step import StepResult, StepSettings, give_up_after


@dataclass(frozen=True)
class LoggedStep:
    """What an interval's log line says; means are over the steps since the last one.

    Attributes:
        state: where the run stands after the step.
        loss: mean loss, nats per token.
        learning_rate, grad_norm: of the last step.
        skipped: steps whose gradients overflowed in fp16, and which changed nothing.
        loss_scale: what the next step's loss is multiplied by in fp16, else None.
        seconds: mean wall time of a step, evaluation and saving left out.
        data_seconds: how much of it was waiting for data.
    """

    state: RunState
    loss: float
    learning_rate: float
    grad_norm: float
    skipped: int
    loss_scale: float | None
    seconds: float
    data_seconds: float


@dataclass(frozen=True)
class Plan:
    """When things happen; all in steps.

    Attributes:
        train_iters: the last step.
        log_interval: a log line every so many steps, and after the last.
        evaluates: whether an evaluation is due after this many steps.
        saves: whether a checkpoint is due after this many steps.
        exit_interval: stop after a multiple of this.
    """

    train_iters: int
    log_interval: int
    evaluates: Callable[[int], bool]
    saves: Callable[[int], bool]
    exit_interval: int | None


@dataclass(frozen=True)
class Hooks:
    """What the loop calls; each is called by all ranks at the same step."""

    log: Callable[[LoggedStep], None]
    evaluate: Callable[[RunState], None]
    save: Callable[[RunState], None]


@dataclass
class _Interval:
    """The time that steps took since the last log line, and how much of it was waiting for data."""

    steps: Stopwatch = field(default_factory=Stopwatch)
    waits: Stopwatch = field(default_factory=Stopwatch)
    num_steps: int = 0

    def take(self, state: RunState, last: StepResult, rate: float) -> LoggedStep:
        """What the log line says, ``last`` being the latest step; the next interval starts."""
        loss, skipped = state.take_interval()
        count, self.num_steps = self.num_steps, 0
        return LoggedStep(
            state=state,
            loss=loss,
            learning_rate=rate,
            grad_norm=last.grad_norm,
            skipped=skipped,
            loss_scale=last.loss_scale,
            seconds=self.steps.take() / count,
            data_seconds=self.waits.take() / count,
        )


def train(
    engine: Any,
    batches: Iterable[StepBatch],
    settings: StepSettings,
    schedule: LRSchedule,
    state: RunState,
    plan: Plan,
    hooks: Hooks,
) -> str:
    """Train from ``state`` on until the plan's end or a stop, and return why it ended.

    A stop, by ``exit_interval`` or by a signal to any rank, comes after the step that is under way
    and saves first. The last step always saves.

    Raises:
        TrainingError: the loss or the gradient norm is not finite, or fp16 overflows step after step.
    """
    interval = _Interval()
    engine.train()
    train_step = step_of(engine)
    with StopRequest() as request:
        iterator = iter(timed(batches, interval.waits))
        while state.step < plan.train_iters:
            with interval.steps:
                batch = next(iterator)
                # A step reads exactly the samples that follow those already read, on any layout.
                assert batch.first_sample == state.consumed_samples, (batch, state)
                # A skipped step does not move the learning rate.
                rate = schedule.at(state.updates)
                result = train_step(
                    engine,
                    batch,
                    settings,
                    step=state.step,
                    learning_rate=rate,
                    stop_asked=lambda: request.asked,
                )
            state.after_step(result.loss, batch.num_samples, skipped=result.skipped)
            if result.loss_scale is not None:
                give_up_after(state.skipped_in_a_row, state.step, result.loss_scale)
            interval.num_steps += 1
            is_last = state.step == plan.train_iters
            if is_last or state.step % plan.log_interval == 0:
                hooks.log(interval.take(state, result, rate))
            if plan.evaluates(state.step) and not is_last:
                hooks.evaluate(state)
            why = _reason_to_stop(state.step, result.stop, request, plan)
            if why or is_last or plan.saves(state.step):
                hooks.save(state)
            if why:
                return why
    return "finished"


def _reason_to_stop(
    step: int, asked_somewhere: bool, request: StopRequest, plan: Plan
) -> str | None:
    """Why the run ends after ``step`` before its time, or None. The last step ends it anyway."""
    if step == plan.train_iters:
        return None
    if asked_somewhere:
        return f"stopped by {request.signal_name or 'a signal to another rank'}"
    if plan.exit_interval and step % plan.exit_interval == 0:
        return f"stopped by exit_interval {plan.exit_interval}"
    return None
