"""Every rule is checked: what must hold between fields, each with its reason and its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron.neox_arguments.batch_sizes import (
    BATCH_KEYS,
    BatchMismatch,
    data_parallel_size,
    solve_batch,
)
from megatron.neox_arguments.merging import Merged
from megatron.neox_arguments.problems import Problems, shown
from megatron.neox_arguments.registry import KNOWN_KEYS, meant_key
from megatron.neox_arguments.rules import layout, model, mup, precision, run, soft_prompt, zero
from megatron.neox_arguments.rules.notes import notes
from megatron.neox_arguments.rules.rule import REQUIRED

if TYPE_CHECKING:
    from megatron.neox_arguments.arguments import NeoXArgs

RULES = (
    *model.RULES,
    *mup.RULES,
    *soft_prompt.RULES,
    *layout.RULES,
    *zero.RULES,
    *run.RULES,
    *precision.RULES,
)


def check_rules(
    args: NeoXArgs, merged: Merged, problems: Problems, world_size: int | None
) -> list[str]:
    """Check every rule; returns the lines that a run should say once."""
    bad = problems.bad_keys()
    accounted_for = bad | {meant_key(key) for key in bad if key not in KNOWN_KEYS}
    missing = [key for key in REQUIRED if getattr(args, key) is None and key not in accounted_for]
    if missing and not merged.is_a_part:
        problems.add(", ".join(missing), "missing: every configuration needs them")
    for keys, rule in RULES:
        needs_shape = any(key in REQUIRED for key in keys)
        if bad.intersection(keys) or (
            needs_shape and any(getattr(args, key) is None for key in REQUIRED)
        ):
            continue
        for key, text in rule(args):
            problems.add(key, text, merged.place(tuple(key.split("."))))
    if world_size is not None:
        _check_world(args, merged, problems, world_size)
    return list(notes(args))


def _check_world(args: NeoXArgs, merged: Merged, problems: Problems, world_size: int) -> None:
    wanted = args.expected.get("world_size")
    if wanted is not None and wanted != world_size:
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        place = merged.place(("world_size",))
        problems.add("world_size", f"the file says {shown(wanted)}, this run has {ranks}", place)
        return  # whatever else does not fit this world may fit the one that is meant
    if not problems.bad_keys().intersection(BATCH_KEYS):
        try:
            solve_batch(args.batch, data_parallel_size(args.parallelism, world_size))
        except BatchMismatch as mismatch:
            problems.add(mismatch.key, str(mismatch), merged.place((mismatch.key,)))
    for key in ("rank", "local_rank"):
        rank = args.expected.get(key)
        if rank is not None and not (isinstance(rank, int) and 0 <= rank < world_size):
            text = f"found {shown(rank)}, but the ranks of this run are 0 to {world_size - 1}"
            problems.add(key, text, merged.place((key,)))
