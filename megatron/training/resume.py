"""What a checkpoint remembers beside weights and optimizer, and whether a run may go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from megatron.checkpointing import CheckpointInfo
from megatron.errors import CheckpointError
from megatron.optimizers import LRSchedule
from megatron.training.setup import Parts


class ScheduleChoice(Protocol):
    """GPT-NeoX's two keys for a schedule that differs from the checkpoint's."""

    @property
    def override_lr_scheduler(self) -> bool: ...
    @property
    def use_checkpoint_lr_scheduler(self) -> bool: ...


def stored_facts(
    index_keys: Mapping[str, str], schedule: LRSchedule, parts: Parts
) -> dict[str, Any]:
    """The facts to put into a checkpoint: which data in which order, which schedule, which vocabulary."""
    return {
        "index_keys": dict(index_keys),
        "lr_schedule": schedule.as_dict(),
        "vocab_size": parts.tokenizer.vocab_size,
        "padded_vocab_size": parts.padded_vocab,
        "tokenizer": parts.tokenizer.fingerprint(),
        "global_batch_size": parts.batch.global_batch_size,
    }


def check_same_data(found: CheckpointInfo, index_keys: Mapping[str, str], *, allowed: bool) -> None:
    """Refuse to go on with other data, or another order, than the checkpoint was trained on.

    The training split decides: that is where ``consumed_samples`` counts.

    Raises:
        CheckpointError: the keys differ and ``allow_data_change`` is not set.
    """
    stored = found.state.get("index_keys", {}).get("train")
    if allowed or stored is None or stored == index_keys.get("train"):
        return
    raise CheckpointError(
        f"{found.path}: was trained on other data, or on the same in another order\n"
        f"  found: index key {index_keys.get('train')} of the training split\n"
        f"  expected: {stored}\n"
        "  differ can: data_path's files, split, seq_length, seed, data_order, and train_iters or the "
        "global batch size where they change the number of epochs\n"
        "  to do: restore these, or set allow_data_change: true (samples may be repeated or left out)",
        everywhere=True,
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
