"""What the plan names, opened on every rank: token files, copies of them, index maps, samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from megatron.data.blended_dataset import BlendedDataset
from megatron.data.index_store import IndexStore
from megatron.data.indexed_dataset import MMapIndexedDataset, data_file_path
from megatron.data.local_cache import Lease, stage
from megatron.data.node_memory import hold_in_memory
from megatron.data.request import DataRequest
from megatron.data.sample_dataset import SampleDataset, Samples
from megatron.data.sources import DataSettings, open_source
from megatron.data.split_plan import DataPlan, SplitPlan
from megatron.data.warmup import warm_up
from megatron.errors import DataError
from megatron.runtime.fs_barrier import open_alike
from megatron.runtime.world import World


def open_files(
    settings: DataSettings, plan: DataPlan, world: World
) -> tuple[dict[str, MMapIndexedDataset], Lease | None]:
    """The token files by path: mapped, or in the memory of the node; and what keeps copies of them.

    All ranks call.

    Raises:
        BarrierError: on all ranks: one cannot be opened on some rank, copied or read.
    """
    paths, lease = list(plan.files), None
    stall_s = settings.index_build_timeout_s
    if settings.data_local_cache_dir is not None:
        root, limit = Path(settings.data_local_cache_dir), settings.data_local_cache_limit_gb
        nbytes = None if limit is None else int(limit * 10**9)
        paths, lease = stage(paths, root, world, limit=nbytes, stall_s=stall_s)

    def open_here() -> tuple[list[MMapIndexedDataset], str]:
        # Sizes are compared with the builder's file by file; the paths may differ between nodes.
        return [
            _open_file(settings, path, *size)
            for path, size in zip(paths, plan.files.values(), strict=True)
        ], ""

    files = open_alike(world, open_here, "token files")
    if settings.data_impl == "cached":
        files = hold_in_memory(files, world, stall_s=stall_s)
    elif settings.mmap_warmup:
        warm_up([data_file_path(path) for path in paths], world, stall_s=stall_s)
    return dict(zip(plan.files, files, strict=True)), lease


def open_splits(
    request: DataRequest,
    store: IndexStore,
    plan: DataPlan,
    files: Mapping[str, MMapIndexedDataset],
) -> tuple[dict[str, Samples], str]:
    """This rank's own view of data and maps, and a text that is equal on all ranks."""
    splits: dict[str, Samples] = {}
    for name, split in plan.splits.items():
        members = [
            SampleDataset(
                files[source.path],
                store.open(source.recipe),
                seq_length=request.seq_length,
                name=name,
                vocab_size=request.vocab_size,
                pad_id=request.pad_id,
                labels=None if source.label_path is None else files[source.label_path],
            )
            for source in split.sources
        ]
        splits[name] = _joined(store, split, members, plan.facts.splits[name].wanted)
    digests = [stored.digest for split in splits.values() for stored in split.stored]
    return splits, ",".join([*splits, *digests])


def _open_file(
    settings: DataSettings, path: str, documents: int, nbytes: int
) -> MMapIndexedDataset:
    data = open_source(settings, path)
    if (len(data), data.tokens.nbytes) != (documents, nbytes):
        raise DataError(
            f"{data.prefix}: has {len(data):,} documents in {data.tokens.nbytes:,} bytes here, the builder "
            f"of the index maps found {documents:,} in {nbytes:,}: the files changed "
            "meanwhile, or differ between the nodes"
        )
    return data


def _joined(
    store: IndexStore, split: SplitPlan, members: Sequence[SampleDataset], samples: int
) -> Samples:
    if split.blend is None:
        return members[0]
    maps = store.open_blend(split.blend)
    return BlendedDataset(
        members,
        maps,
        units=split.blend.units,
        samples=samples,
        start=split.leg.start,
        before=[source.before for source in split.sources],
    )
