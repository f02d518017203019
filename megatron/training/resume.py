"""What a checkpoint remembers beside weights and optimizer, and whether a run may go on from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from megatron.checkpointing import CheckpointInfo
from megatron.checkpointing.fitting import refusal
from megatron.checkpointing.same_schedule import ScheduleChoice
from megatron.data.datasets import DataSplits
from megatron.data.progress import Progress
from megatron.data.split_plan import SHARED_FACTS, describe_difference
from megatron.logging import get_logger
from megatron.model import parametrization_of
from megatron.neox_arguments import BatchSizes, NeoXArgs
from megatron.optimizers import LRSchedule
from megatron.training.setup import Parts

log = get_logger(__name__)


def stored_facts(
    data: DataSplits, schedule: LRSchedule, parts: Parts, batch: BatchSizes, consumed_samples: int
) -> dict[str, Any]:
    """The facts to put into a checkpoint: which data in which order, which schedule, which vocabulary."""
    progress = data.progress_at(consumed_samples)
    return {
        "progress": None if progress is None else progress.as_dict(),
        "index_keys": dict(data.index_keys),
        "order_facts": {split: dict(facts) for split, facts in data.order_facts.items()},
        "lr_schedule": schedule.as_dict(),
        "vocab_size": parts.tokenizer.vocab_size,
        "padded_vocab_size": parts.padded_vocab,
        "tokenizer": parts.tokenizer.fingerprint(),
        "global_batch_size": batch.global_batch_size,
    }


def parametrization_facts(args: NeoXArgs, padded_vocab: int) -> dict[str, Any]:
    """What a checkpoint remembers of how its model is parametrised; nothing of a standard one."""
    if not args.mup.use_mup:
        return {}
    found = parametrization_of(args.mup, args.model, padded_vocab)
    facts = {
        "score_scale": found.score_scale,
        "distance_scale": found.distance_scale,
        "embedding_factor": found.embedding_factor,
        "position_factor": found.position_factor,
        "logits_factor": found.logits_factor,
        "widths": sorted(set(found.ratios.values())),
    }
    return {"mup": facts}


def check_same_parametrization(found: CheckpointInfo, args: NeoXArgs, padded_vocab: int) -> None:
    """Refuse weights that mean another model under this configuration's parametrisation.

    Raises:
        CheckpointError: they were trained under another one. Checkpoints of others do not say.
    """
    if found.manifest is None:
        return
    theirs: Mapping[str, Any] = found.state.get("mup") or {}
    ours: Mapping[str, Any] = parametrization_facts(args, padded_vocab).get("mup", {})
    names = [name for name in ours or theirs if ours.get(name) != theirs.get(name)]
    if not names:
        return
    said = [(n, theirs.get(n, "standard"), ours.get(n, "standard")) for n in names]
    raise refusal(
        found,
        "was trained under another parametrisation (use_mup, base_shapes_file, mup_*)",
        [f"{name}: {then} → {now}" for name, then, now in said],
        "restore these keys and the file of base shapes",
    )


def check_same_data(found: CheckpointInfo, data: DataSplits, *, allowed: bool) -> None:
    """Refuse to go on with other data, or another order, than the checkpoint was made with.

    A held-out split may be read for more or fewer epochs: other settings of the evaluation change
    which of its samples are read, not what is learnt. That is said, not refused. Nor is a training blend
    that has got other members or weights, where each member's own position is known.

    Raises:
        CheckpointError: a split differs and ``allow_data_change`` is not set.
    """
    stored: Mapping[str, Mapping[str, Any]] = found.state.get("order_facts", {})
    changed: list[str] = []
    progress = stored_progress(found)
    for split, ours in data.order_facts.items():
        theirs = stored.get(split, ours)
        if split == "train" and progress is not None and data.progress_at(0) is not None:
            changed += [f"train: {text}" for text in _changed_for_good(theirs, data, progress)]
            continue
        # Checkpoints of before this fact was kept have nothing to compare it with.
        new = {name: fact for name, fact in ours.items() if name.endswith("content")}
        differences = describe_difference(new | dict(theirs), ours)
        if split != "train" and all(text.split(":")[0].endswith("epochs") for text in differences):
            for text in differences:
                log.info("the %s split is read for other %s than before", split, text)
            continue
        changed += [f"{split}: {text}" for text in differences]
    if not changed or allowed:
        return
    of_epochs = any("epochs" in line.partition("→")[0] for line in changed)
    hint = (
        " (epochs follow from train_iters and the batch; with data_order: epochs they do not matter)"
        if of_epochs
        else ""
    )
    raise refusal(
        found,
        "was trained on other data, or on the same in another order",
        changed[:5] + ([f"… {len(changed) - 5} more"] if changed[5:] else []),
        f"restore these{hint}, or set allow_data_change: true",
    )


def stored_progress(found: CheckpointInfo | None) -> Progress | None:
    """Where the run of a checkpoint stood in its training data; None where it did not say."""
    stored = found.state.get("progress") if found is not None else None
    return None if stored is None else Progress.from_dict(stored)


def _changed_for_good(
    theirs: Mapping[str, Any], data: DataSplits, progress: Progress
) -> Sequence[str]:
    """What no position survives: how samples are cut and ordered, or the content of a dataset."""
    shared = [
        {name: facts.get(name) for name in SHARED_FACTS}
        for facts in (theirs, data.order_facts["train"])
    ]
    assert data.train_plan is not None
    keys = {path: key for key, path in progress.paths.items()}
    other = [
        f"{source.path}: other content, documents or labels than before"
        for source in data.train_plan.sources
        if keys.get(source.path, source.key) != source.key
    ]
    # A key of the whole, such as the seed, changes those of all datasets.
    return describe_difference(*shared) or other


def note_changed_blend(data: DataSplits, progress: Progress | None) -> None:
    """Say which datasets have joined or left the training blend, and that the others go on."""
    plan = data.train_plan
    if plan is None or progress is None or plan.order_key == progress.order_key:
        return
    ours = {source.key: source for source in plan.sources}
    for key in progress.paths.keys() - ours.keys():
        given = progress.given[key]
        log.info("train: %s leaves the blend after %s samples", progress.paths[key], f"{given:,}")
    for key, source in ours.items():
        verb = "goes on from" if key in progress.paths else "joins the blend at"
        log.info("train: %s %s its sample %s", source.path, verb, f"{source.before:,}")


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


def schedule_to_follow(
    found: CheckpointInfo | None, ours: LRSchedule, choice: ScheduleChoice
) -> LRSchedule:
    """The checkpoint's schedule where ``use_checkpoint_lr_scheduler`` asks for it, else ``ours``."""
    stored = found.state.get("lr_schedule") if found is not None else None
    if stored is None or not choice.use_checkpoint_lr_scheduler:
        return ours
    return LRSchedule(**stored)
