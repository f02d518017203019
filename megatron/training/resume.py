"""What a checkpoint remembers beside weights and optimizer, and whether a run may go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from megatron.checkpointing import CheckpointInfo
from megatron.data.datasets import DataSplits, describe_difference
from megatron.errors import CheckpointError
from megatron.logging import get_logger
from megatron.neox_arguments import BatchSizes
from megatron.optimizers import LRSchedule
from megatron.training.setup import Parts

log = get_logger(__name__)


class ScheduleChoice(Protocol):
    """GPT-NeoX's two keys for a schedule that differs from the checkpoint's."""

    @property
    def override_lr_scheduler(self) -> bool: ...
    @property
    def use_checkpoint_lr_scheduler(self) -> bool: ...


def stored_facts(
    data: DataSplits, schedule: LRSchedule, parts: Parts, batch: BatchSizes
) -> dict[str, Any]:
    """The facts to put into a checkpoint: which data in which order, which schedule, which vocabulary."""
    return {
        "index_keys": dict(data.index_keys),
        "order_facts": {split: dict(facts) for split, facts in data.order_facts.items()},
        "lr_schedule": schedule.as_dict(),
        "vocab_size": parts.tokenizer.vocab_size,
        "padded_vocab_size": parts.padded_vocab,
        "tokenizer": parts.tokenizer.fingerprint(),
        "global_batch_size": batch.global_batch_size,
    }


def check_same_data(found: CheckpointInfo, data: DataSplits, *, allowed: bool) -> None:
    """Refuse to go on with other data, or another order, than the checkpoint was made with.

    A held-out split may be read for more or fewer epochs: other settings of the evaluation change
    which of its samples are read, not what is learnt. That is said, not refused.

    Raises:
        CheckpointError: a split differs and ``allow_data_change`` is not set.
    """
    stored: Mapping[str, Mapping[str, Any]] = found.state.get("order_facts", {})
    changed: list[str] = []
    for split, ours in data.order_facts.items():
        differences = describe_difference(stored.get(split, ours), ours)
        if split != "train" and all(text.split(":")[0].endswith("epochs") for text in differences):
            for text in differences:
                log.info("the %s split is read for other %s than before", split, text)
            continue
        changed += [f"    {split}: {text}" for text in differences]
    if not changed or allowed:
        return
    listing = "\n".join(changed[:5] + ([f"    … {len(changed) - 5} more"] if changed[5:] else []))
    raise CheckpointError(
        f"{found.path}: was trained on other data, or on the same in another order\n"
        f"  checkpoint → configuration:\n{listing}\n"
        "  to do: restore these (epochs follow from train_iters and the batch; with data_order: epochs "
        "they do not matter), or set allow_data_change: true",
        everywhere=True,
    )


def note_other_tokenizer(found: CheckpointInfo, parts: Parts) -> None:
    """Say when the weights have learnt ids of another tokenizer than this one.

    Not refused: two kinds of tokenizer may give the same ids.
    """
    stored = found.state.get("tokenizer")
    if stored in (None, parts.tokenizer.fingerprint()) or not parts.world.is_first:
        return
    log.warning(
        "%s was trained with another tokenizer than %s (or other files of it): unless both give the "
        "same ids, what the model reads and writes makes no sense",
        found.path,
        parts.tokenizer.name,
    )


def note_other_batch(found: CheckpointInfo, batch: BatchSizes) -> None:
    """Say that a step has another number of samples than before: allowed, but not unnoticed."""
    stored = found.state.get("global_batch_size")
    if stored is not None and stored != batch.global_batch_size:
        log.warning(
            "%s: was trained with %s samples a step, this run takes %s: steps and evaluations no longer "
            "stand for the same numbers of samples",
            found.path,
            f"{stored:,}",
            f"{batch.global_batch_size:,}",
        )


def check_same_schedule(
    found: CheckpointInfo, schedule: LRSchedule, choice: ScheduleChoice
) -> None:
    """Refuse a silently changed learning-rate schedule.

    Raises:
        CheckpointError: the schedules differ and the user has not said which one counts.
    """
    stored = found.state.get("lr_schedule")
    ours = schedule.as_dict()
    said = choice.override_lr_scheduler or choice.use_checkpoint_lr_scheduler
    if stored is None or stored == ours or said:
        return
    changed = [name for name in ours if stored.get(name) != ours[name]]
    lines = "\n".join(f"    {name}: {stored.get(name)} → {ours[name]}" for name in changed)
    raise CheckpointError(
        f"{found.path}: its learning-rate schedule differs from the configuration's\n"
        f"  checkpoint → configuration:\n{lines}\n"
        "  to do: set override_lr_scheduler: true to follow the configuration from here on, or "
        "use_checkpoint_lr_scheduler: true to keep the checkpoint's",
        everywhere=True,
    )


def schedule_to_follow(
    found: CheckpointInfo | None, ours: LRSchedule, choice: ScheduleChoice
) -> LRSchedule:
    """The checkpoint's schedule where ``use_checkpoint_lr_scheduler`` asks for it, else ``ours``."""
    stored = found.state.get("lr_schedule") if found is not None else None
    if stored is None or not choice.use_checkpoint_lr_scheduler:
        return ours
    return LRSchedule(**stored)
