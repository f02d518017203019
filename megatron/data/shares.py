"""What a blend really gives, for people: shares as asked for and as read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from megatron.data.blended_dataset import BlendedDataset
from megatron.data.facts import SplitFacts
from megatron.data.sample_dataset import Samples

_SHOWN: Final = 8  # members that are listed one by one


def blend_lines(facts: Mapping[str, SplitFacts], splits: Mapping[str, Samples]) -> Iterator[str]:
    """A line for each blend and a few for its members, those with most samples first."""
    for name, blend in splits.items():
        # One dataset has no shares, and a run at its end reads nothing more.
        if isinstance(blend, BlendedDataset) and len(blend.given) > 1 and blend.given.sum():
            yield from _lines(name, facts[name], blend)


def _lines(name: str, facts: SplitFacts, blend: BlendedDataset) -> Iterator[str]:
    total = int(blend.given.sum())
    rows = sorted(zip(facts.members, blend.given.tolist(), strict=True), key=lambda row: -row[1])
    yield f"{name} blend: {len(rows):,} datasets, {total:,} samples; share asked for → read"
    shown = rows if len(rows) <= _SHOWN + 1 else rows[:_SHOWN]
    for member, given in shown:
        yield (
            f"  {_percent(member.weight)} → {_percent(given / total)}  {given:,} samples, "
            f"{given / member.samples_per_epoch:.3g} epochs  {member.path}"
        )
    rest = rows[len(shown) :]
    if rest:
        asked, read = sum(m.weight for m, _ in rest), sum(given for _, given in rest)
        epochs = sorted(given / m.samples_per_epoch for m, given in rest)
        silent = sum(given == 0 for _, given in rest)
        yield (
            f"  {_percent(asked)} → {_percent(read / total)}  {read:,} samples, {epochs[0]:.3g} to "
            f"{epochs[-1]:.3g} epochs  {len(rest):,} more"
            + (f", {silent:,} of them with no sample in this run" if silent else "")
        )


def _percent(share: float) -> str:
    return f"{share:.3%}"
