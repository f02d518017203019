"""What a run tells: the block of facts at its start, log lines for people, rows for programs."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

from torch import nn

from megatron.data.datasets import DataSplits
from megatron.logging import get_logger
from megatron.monitor import (
    METRICS_FILE,
    Interval,
    LayoutFacts,
    Monitor,
    RunFacts,
    SplitFacts,
    evaluation_line,
    facts_block,
    interval_line,
    model_flops_utilization,
    open_monitor,
    peak_flops,
)
from megatron.monitor.from_arguments import batch_facts, flops_a_token, memory_of, model_facts
from megatron.monitor.pipeline_facts import memory_of_largest_stage, pipeline_text
from megatron.neox_arguments import BatchSizes, NeoXArgs
from megatron.neox_arguments.sections import ModelArgs
from megatron.runtime.device import default_backend, device_name, peak_memory_bytes
from megatron.runtime.partitioned import whole_numel
from megatron.training.loop import LoggedStep
from megatron.training.run_state import RunState
from megatron.training.setup import Parts, total_steps

log = get_logger(__name__)


class Reporter:
    """Writes log lines and metrics of one run; on other ranks than the first it is silent."""

    def __init__(
        self,
        args: NeoXArgs,
        parts: Parts,
        batch: BatchSizes,
        monitor: Monitor,
    ) -> None:
        self._args = args
        self._parts = parts
        self._batch = batch
        self._monitor = monitor
        self._flops_per_token = _flops_per_token(args.model, parts.padded_vocab)
        self._evaluating_since = 0.0

    @staticmethod
    def open(args: NeoXArgs, parts: Parts, batch: BatchSizes, state: RunState) -> Reporter:
        """Open the sinks and cut what an earlier process wrote beyond ``state``.

        Raises:
            NeoXError: a folder cannot be written to.
        """
        monitor = open_monitor(
            parts.world,
            log_dir=args.logging.log_dir,
            save=args.checkpointing.save,
            tensorboard_dir=args.logging.tensorboard_dir,
        )
        monitor.cut_after(state.step)
        return Reporter(args, parts, batch, monitor)

    def close(self) -> None:
        self._monitor.close()

    def was_evaluated(self, split: str, step: int) -> bool:
        """Whether ``metrics.jsonl`` has one of ``split`` at ``step``; the same on all ranks."""
        logging, save = self._args.logging, self._args.checkpointing.save
        folder = logging.log_dir or save
        found = False
        if self._parts.world.is_first and folder is not None:
            rows = (Path(folder) / METRICS_FILE).read_text(encoding="utf-8").splitlines()
            evaluations = (row for row in map(json.loads, rows) if f"{split}/lm_loss" in row)
            found = any(row["iteration"] == step for row in evaluations)
        return self._parts.world.broadcast(found)

    def logged(self, at: LoggedStep) -> None:
        """One interval of training."""
        args, batch, state = self._args, self._batch, at.state
        samples_per_sec = batch.global_batch_size / at.seconds
        tokens_per_sec = samples_per_sec * args.model.seq_length
        scaling: dict[str, float] = {}
        if at.loss_scale is not None:
            scaling = {
                "train/loss_scale": at.loss_scale,
                "train/skipped_iterations": at.skipped,
            }
        self._monitor.write(
            {
                "iteration": state.step,
                "consumed_samples": state.consumed_samples,
                "train/lm_loss": at.loss,
                "train/learning_rate": at.learning_rate,
                "train/grad_norm": at.grad_norm,
                **scaling,
                "runtime/tokens_per_sec": tokens_per_sec,
                "runtime/samples_per_sec": samples_per_sec,
                "runtime/iteration_time": at.seconds,
                "runtime/data_wait": at.data_seconds,
            }
        )
        log.info("%s", interval_line(self._interval(at, tokens_per_sec, samples_per_sec)))

    def _interval(self, at: LoggedStep, tokens_per_sec: float, samples_per_sec: float) -> Interval:
        """What a person reads of it."""
        args, state, device = self._args, at.state, self._parts.device
        total = total_steps(args)
        return Interval(
            step=state.step,
            total_steps=total,
            loss=at.loss,
            learning_rate=at.learning_rate,
            grad_norm=at.grad_norm,
            skipped=at.skipped,
            loss_scale=at.loss_scale,
            tokens_per_sec=tokens_per_sec,
            samples_per_sec=samples_per_sec,
            iteration_time=at.seconds,
            data_wait=at.data_seconds,
            memory_bytes=peak_memory_bytes(device),
            consumed_samples=state.consumed_samples,
            consumed_tokens=state.consumed_samples * args.model.seq_length,
            eta=(total - state.step) * at.seconds,
            mfu=model_flops_utilization(
                tokens_per_sec,
                self._flops_per_token,
                self._parts.world.size,
                _device_peak(args, device_name(device)),
            ),
        )

    def evaluation_starts(self) -> None:
        self._evaluating_since = time.perf_counter()

    def evaluated(self, split: str, state: RunState, loss: float) -> None:
        """One evaluation of ``split`` (``validation`` or ``test``), in nats per token."""
        training = self._args.training
        self._monitor.write(
            {
                "iteration": state.step,
                "consumed_samples": state.consumed_samples,
                f"{split}/lm_loss": loss,
            }
        )
        log.info(
            "%s",
            evaluation_line(
                state.step,
                total_steps(self._args),
                split,
                loss,
                math.inf if loss > 700 else math.exp(loss),
                training.eval_iters * self._batch.global_batch_size,
                time.perf_counter() - self._evaluating_since,
            ),
        )

    def facts(self, facts: RunFacts) -> None:
        """The block of facts, line by line."""
        for line in facts_block(facts).splitlines():
            log.info("%s", line)


def run_facts(
    args: NeoXArgs, parts: Parts, batch: BatchSizes, model: nn.Module, data: DataSplits
) -> RunFacts:
    """The facts of a run, from its parts."""
    m, grid = args.model, parts.groups.grid
    return RunFacts(
        model=model_facts(
            m,
            parameters=m.parameter_count(parts.padded_vocab),
            embedding_parameters=m.embedding_parameter_count(parts.padded_vocab),
            vocab_size=parts.tokenizer.vocab_size,
            padded_vocab_size=parts.padded_vocab,
        ),
        layout=LayoutFacts(
            world_size=parts.world.size,
            num_nodes=parts.world.num_nodes,
            data_parallel_size=grid.data,
            pipe_parallel_size=args.parallelism.pipe_parallel_size,
            context_parallel_size=grid.context,
            model_parallel_size=grid.model,
            sequence_parallel=parts.groups.sequence_parallel,
            device=device_name(parts.device),
            backend=args.training.distributed_backend or default_backend(),
            precision=m.precision,
            zero_stage=args.optim.zero_stage,
            offloaded=args.optim.offloaded,
        ),
        batch=batch_facts(batch),
        splits=[
            SplitFacts(
                name=name,
                documents=split.documents,
                tokens_per_epoch=split.tokens,
                samples_per_epoch=split.samples_per_epoch,
                samples_wanted=split.wanted,
            )
            for name, split in data.facts.splits.items()
        ],
        train_iters=total_steps(args),
        pipeline=pipeline_text(args, batch, parts.padded_vocab),
        memory=memory_of_largest_stage(args, batch, parts.padded_vocab)
        if grid.pipe > 1
        else memory_of(
            args,
            batch,
            parameters=sum(whole_numel(p) for p in model.parameters()),
            padded_vocab_size=parts.padded_vocab // grid.model,
        ),
    )


def _device_peak(args: NeoXArgs, name: str) -> float | None:
    """FLOP/s that one device could compute: as the configuration says, else by its name."""
    written = args.logging.peak_theoretical_tflops
    return written * 1e12 if written is not None else peak_flops(name)


def _flops_per_token(model: ModelArgs, padded_vocab_size: int) -> float:
    return flops_a_token(
        model,
        parameters=model.parameter_count(padded_vocab_size),
        embedding_parameters=model.embedding_parameter_count(padded_vocab_size),
    )
