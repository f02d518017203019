"""Which index maps a run needs: a look at the data, without building anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from megatron.data.draft import Draft, Opened, Part, plan_split
from megatron.data.facts import DataFacts, MemberFacts, SplitFacts
from megatron.data.index_store import IndexStore
from megatron.data.labels import check_labels_fit
from megatron.data.request import DataRequest
from megatron.data.sources import (
    all_paths,
    count_of,
    documents_of,
    label_paths_of,
    open_source,
    order_of,
    paths_of,
)
from megatron.data.split_plan import DataPlan, SplitPlan
from megatron.data.splits import SPLIT_NAMES, is_left_out
from megatron.data.vocabulary import check_token_ids
from megatron.errors import DataError

# Ids of this many tokens at the start of the file are checked before the run starts; the loader
# checks all that it reads.
_TOKENS_LOOKED_AT: Final = 1_000_000


def plan_indexes(request: DataRequest, store: IndexStore) -> DataPlan:
    """Look at the data and say which index maps the run needs. Data seen before costs a header's read.

    A run that is resumed goes on in its leg where the training blend is the same, and begins another where it
    is not.

    Raises:
        DataError: the data is missing, damaged or too little to train on, or does not fit the
            vocabulary.
    """
    settings = request.settings
    files = {path: _look_at(request, store, path) for path in all_paths(settings)}
    labels = {
        path: _look_at(request, store, path, are_labels=True)
        for name in SPLIT_NAMES
        for path in label_paths_of(settings, name)
        if path is not None
    }
    splits: dict[str, SplitPlan] = {}
    facts: dict[str, SplitFacts] = {}
    warnings: list[str] = []
    for name, samples in zip(SPLIT_NAMES, request.wanted, strict=True):
        if samples == 0 or (settings.data_path and is_left_out(settings.split, name)):
            continue
        if not paths_of(settings, name):
            warnings.append(f"{name}_data_paths is not set: there is no {name} split")
            continue
        parts = _parts_of(request, store, name, files, labels)
        warning, usable = _judge(request, name, parts)
        if warning:
            warnings.append(warning)
        if usable:
            plan = plan_split(Draft(request, name, parts, samples))
            splits[name], facts[name] = plan, _facts_of(plan, parts, samples)
    if settings.weight_by_num_documents:
        warnings += [
            f"weight_by_num_documents: {name}_data_weights is not used"
            for name in SPLIT_NAMES
            if getattr(settings, f"{name}_data_weights")
        ]
    whole = [file.data for file in files.values()]
    documents, tokens = sum(map(len, whole)), sum(data.num_tokens for data in whole)
    sizes = {
        path: (len(file.data), file.data.tokens.nbytes) for path, file in (files | labels).items()
    }
    return DataPlan(sizes, splits, DataFacts(documents, tokens, facts, tuple(warnings)))


def _look_at(
    request: DataRequest, store: IndexStore, path: str, *, are_labels: bool = False
) -> Opened:
    data = open_source(request.settings, path)
    if request.vocab_size is not None:
        tokens = data.tokens[:_TOKENS_LOOKED_AT]
        check_token_ids(data, 0, tokens, request.vocab_size, are_labels=are_labels)
    return Opened(data, store.fingerprint(data), store.content(data))


def _parts_of(
    request: DataRequest,
    store: IndexStore,
    split: str,
    files: Mapping[str, Opened],
    labels: Mapping[str, Opened],
) -> tuple[Part, ...]:
    """The datasets of a split.

    Raises:
        DataError: a label file does not fit its text.
    """
    settings = request.settings
    parts = []
    for path, label_path in zip(
        paths_of(settings, split), label_paths_of(settings, split), strict=True
    ):
        beside = None if label_path is None else labels[label_path]
        if beside is not None and beside.fingerprint != files[path].fingerprint:
            check_labels_fit(files[path].data, beside.data)
        data = files[path].data
        first, stop = documents_of(settings, split, data)
        count = count_of(
            settings, store, data, first, stop, seq_length=request.seq_length, seed=request.seed
        )
        tokens = data.tokens_between(first, stop)
        parts.append(Part(path, files[path], first, stop, tokens, count, label_path, beside))
    return tuple(parts)


def _where(request: DataRequest, split: str, parts: Sequence[Part]) -> str:
    """A split and its size, for messages."""
    settings = request.settings
    documents, tokens = sum(p.documents for p in parts), sum(p.tokens for p in parts)
    size = f"{tokens:,} tokens, with seq_length {request.seq_length}"
    if settings.pack_impl != "packed":
        size += f", pack_impl {settings.pack_impl}"
        size += "" if settings.allow_chopped else " and without the longer ones (allow_chopped)"
    if settings.data_path:
        data = parts[0].file.data
        return (
            f"{data.prefix}: the {split} split has {documents:,} of {len(data):,} documents (split: "
            f"{settings.split}), {size}"
        )
    what = parts[0].path if len(parts) == 1 else f"{len(parts):,} datasets"
    return f"{split}_data_paths: {what}: {documents:,} documents, {size}"


def _judge(request: DataRequest, split: str, parts: Sequence[Part]) -> tuple[str | None, bool]:
    """A line to tell the user about a small split, and whether it can be read at all.

    Raises:
        DataError: it is the training split and has not one sample for each of the ranks.
    """
    per_epoch, needed = sum(part.count.per_epoch for part in parts), request.data_parallel_size
    if per_epoch >= needed:
        return None, True
    where = _where(request, split, parts)
    if split == "train":
        raise DataError(
            f"{where}: {per_epoch} whole samples; the {needed} data-parallel ranks need one each\n"
            "  to do: use more text, a larger share for training, a smaller seq_length or fewer ranks"
        )
    nothing = sum(part.tokens for part in parts) == 0
    if nothing or (per_epoch == 0 and order_of(request.settings) == "epochs"):
        return f"{where}: not one whole sample: it is not evaluated", False
    return f"{where}: {per_epoch} samples an epoch: evaluation reads them repeatedly", True


def _facts_of(plan: SplitPlan, parts: Sequence[Part], wanted: int) -> SplitFacts:
    recipes = [source.recipe for source in plan.sources]
    per_epoch = [part.count.per_epoch for part in parts]
    members: tuple[MemberFacts, ...] = ()
    if plan.blend is not None:
        members = tuple(
            MemberFacts(source.path, unit / sum(plan.blend.units), count)
            for source, unit, count in zip(plan.sources, plan.blend.units, per_epoch, strict=True)
        )
    return SplitFacts(
        documents=sum(r.stop_document - r.first_document for r in recipes),
        tokens=sum(r.tokens_per_epoch for r in recipes),
        bytes=sum(part.tokens * part.file.data.dtype.itemsize for part in parts),
        samples_per_epoch=sum(per_epoch),
        epochs=max(r.epochs for r in recipes),
        samples=recipes[0].samples if plan.blend is None else wanted,
        wanted=wanted,
        members=members,
    )
