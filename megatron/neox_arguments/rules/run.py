"""Schedule, length, data, checkpoints and texts of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from megatron.neox_arguments.problems import shown
from megatron.neox_arguments.rules.rule import Finding, Rules

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

RULES = Rules()


@RULES.about("lr", "min_lr", "lr_decay_style")
def _lr_goes_down(args: NeoXArgs) -> Iterator[Finding]:
    low, high = args.lr_schedule.min_lr, args.optim.lr
    if low > high:
        yield "min_lr", f"{low:g} is above the learning rate {high:g} (optimizer.params.lr)"


@RULES.about("lr_decay_iters", "lr_decay_fraction")
def _one_decay_length(args: NeoXArgs) -> Iterator[Finding]:
    schedule = args.lr_schedule
    if schedule.lr_decay_iters is not None and schedule.lr_decay_fraction is not None:
        yield "lr_decay_fraction", "lr_decay_iters is given too: keep one"


@RULES.about("override_lr_scheduler", "use_checkpoint_lr_scheduler")
def _one_schedule(args: NeoXArgs) -> Iterator[Finding]:
    if args.lr_schedule.override_lr_scheduler and args.lr_schedule.use_checkpoint_lr_scheduler:
        yield (
            "override_lr_scheduler",
            "use_checkpoint_lr_scheduler is true too, which says the opposite: keep one",
        )


@RULES.about("train_iters", "train_epochs")
def _one_length(args: NeoXArgs) -> Iterator[Finding]:
    if args.training.train_iters is not None and args.training.train_epochs is not None:
        yield "train_epochs", "train_iters is given too: keep one"


# Data, checkpoints, text.


@RULES.about("split")
def _split_is_shares(args: NeoXArgs) -> Iterator[Finding]:
    parts = args.data.split.replace("/", ",").split(",")
    try:
        shares = [float(part) for part in parts]
    except ValueError:
        shares = []
    if (
        not 1 <= len(shares) <= 3
        or not all(0 <= share < float("inf") for share in shares)
        or sum(shares) <= 0
    ):
        yield "split", f"found {shown(args.data.split)}, expected three shares such as 969, 30, 1"


_BLENDS = ("train", "valid", "test")
_BLEND_PATHS = tuple(f"{split}_data_paths" for split in _BLENDS)
_BLEND_LABELS = tuple(f"{split}_label_data_paths" for split in _BLENDS)
_BLEND_WEIGHTS = tuple(f"{split}_data_weights" for split in _BLENDS)
_MOST_DATASETS = 1000


@RULES.about("data_path", *_BLEND_PATHS, *_BLEND_LABELS)
def _data_paths_are_prefixes(args: NeoXArgs) -> Iterator[Finding]:
    given = {"data_path": [args.data.data_path] if args.data.data_path else []}
    given |= {key: list(getattr(args.data, key) or ()) for key in (*_BLEND_PATHS, *_BLEND_LABELS)}
    for key, paths in given.items():
        for path in paths:
            for ending in (".bin", ".idx"):
                if path.endswith(ending):
                    yield key, f"{path} names one file of a pair: take {ending} off"
        for path in {path for path in paths if paths.count(path) > 1}:
            yield key, f"{path} is in it twice: name it once and give it the weight of both"
        if len(paths) > _MOST_DATASETS:
            yield key, f"{len(paths):,} datasets, the most are {_MOST_DATASETS:,}: merge some"


@RULES.about("data_path", *_BLEND_PATHS, *_BLEND_LABELS, *_BLEND_WEIGHTS, "weight_by_num_documents")
def _blends_are_whole(args: NeoXArgs) -> Iterator[Finding]:
    data = args.data
    blends = [key for key in _BLEND_PATHS if getattr(data, key)]
    if data.data_path and blends:
        yield blends[0], "data_path is given too, which would be split: keep one of the two ways"
    for keys, kind, expected in (
        (_BLEND_WEIGHTS, "weights", "one is needed for each"),
        (_BLEND_LABELS, "label files", "each needs its own"),
    ):
        for paths_key, key in zip(_BLEND_PATHS, keys, strict=True):
            paths, given = getattr(data, paths_key) or (), getattr(data, key)
            if given and len(given) != len(paths):
                yield key, f"{len(given):,} {kind} for {len(paths):,} {paths_key}: {expected}"
    if data.weight_by_num_documents and not blends:
        yield "weight_by_num_documents", "weighs the members of *_data_paths, which are not given"


@RULES.about("reset_position_ids", "pos_emb")
def _positions_are_there(args: NeoXArgs) -> Iterator[Finding]:
    # What rpe and alibi add to scores depends on where tokens lie, whatever their positions are called.
    if args.data.reset_position_ids and args.model.pos_emb in ("none", "alibi", "rpe"):
        yield (
            "reset_position_ids",
            f"pos_emb is {args.model.pos_emb}: there are no positions to reset, take it out",
        )


@RULES.about("data_local_cache_dir", "data_local_cache_limit_gb")
def _a_limit_needs_a_folder(args: NeoXArgs) -> Iterator[Finding]:
    if args.data.data_local_cache_limit_gb is not None and args.data.data_local_cache_dir is None:
        yield (
            "data_local_cache_limit_gb",
            "limits the copies in data_local_cache_dir, which is not set: set it, or take this out",
        )


@RULES.about("checkpoint_factor", "checkpoint_scale")
def _checkpoint_factor_fits(args: NeoXArgs) -> Iterator[Finding]:
    factor, scale = args.checkpointing.checkpoint_factor, args.checkpointing.checkpoint_scale
    if factor is None:
        return
    if scale == "linear" and not factor.is_integer():
        yield (
            "checkpoint_factor",
            f"{factor:g} is no whole number of steps (checkpoint_scale: linear)",
        )
    if scale == "log" and factor <= 1:
        yield "checkpoint_factor", f"{factor:g} must be above 1 with checkpoint_scale: log"


@RULES.about("load", "finetune", "iteration")
def _there_is_something_to_load(args: NeoXArgs) -> Iterator[Finding]:
    settings = args.checkpointing
    if settings.load is not None:
        return
    if settings.finetune:
        yield "finetune", "is true, but there are no weights to start from: load is not given"
    if settings.iteration is not None:
        yield "iteration", f"found {settings.iteration}, but load is not given"


@RULES.about("reshape_on_load", "use_node_local_storage", "checkpoint")
def _all_parts_are_in_reach(args: NeoXArgs) -> Iterator[Finding]:
    if args.checkpointing.reshape_on_load and args.checkpointing.use_node_local_storage:
        yield (
            "reshape_on_load",
            "reads the parts that all ranks saved, and use_node_local_storage says that each node has only "
            "its own: copy them into one folder that all nodes see, then set that to false",
        )


@RULES.about("text_gen_type", "sample_input_file")
def _prompts_are_given(args: NeoXArgs) -> Iterator[Finding]:
    if args.textgen.text_gen_type == "input-file" and not args.textgen.sample_input_file:
        yield "sample_input_file", "missing: text_gen_type is input-file"
