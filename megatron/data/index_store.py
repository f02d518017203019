"""Index maps on disk: named by everything that they depend on, complete or not there, mapped to read.

    root/<key>/doc_idx.npy, sample_idx.npy, shuffle_idx.npy, manifest.json
    root/fingerprints/<hash of the path>.json    content hash of an ``.idx`` file seen before
    root/contents/<hash of the path>.json        likewise, pieces of the ``.bin`` file
    root/counts/<hash>.json                      samples of each epoch, where they have to be counted

The key is a hash of the recipe: change the data, the split, the seed or the code that builds, and it
is another key; nothing is ever reused by mistake. Who builds and who waits is not decided here (see
:mod:`megatron.runtime.fs_barrier`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from megatron.data.blend import counts_before, turns
from megatron.data.index_maps import build_pieces
from megatron.data.indexed_dataset import MMapIndexedDataset, data_file_path, index_file_path
from megatron.data.mapping import map_file
from megatron.data.recipes import BlendRecipe, IndexRecipe, hash_of
from megatron.data.stored_arrays import (
    BlendMaps,
    IndexMaps,
    StoredArrays,
    content_hash,
    write_arrays,
)
from megatron.errors import DataError
from megatron.runtime.durable import replace_file

DEFAULT_FOLDER: Final = "index_store"
_LOOKS: Final = 16  # pieces of a .bin file that tell it from another
_LOOK_BYTES: Final = 4096


class IndexStore:
    """The folder ``root`` of index maps. Nothing is written before something is built."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def is_whole(self, folder: Path) -> bool:
        """Whether ``folder`` holds a manifest and every array that it names, each of its size."""
        try:
            StoredArrays(folder)
        except DataError:
            return False
        return True

    def open(self, recipe: IndexRecipe) -> IndexMaps:
        """Map what has been published for ``recipe``.

        Raises:
            DataError: it is not there or not whole.
        """
        return IndexMaps(self.root / recipe.key)

    def open_blend(self, recipe: BlendRecipe) -> BlendMaps:
        """Likewise for a blend.

        Raises:
            DataError: it is not there or not whole.
        """
        return BlendMaps(self.root / recipe.key)

    def build_blend(self, recipe: BlendRecipe, folder: Path) -> None:
        """Fill the empty ``folder`` with the turns of a blend."""
        members = turns(recipe.units, recipe.turns)
        counts = counts_before(members, len(recipe.units))
        form = ((recipe.turns,), np.dtype("<i8"))
        write_arrays(
            folder,
            recipe,
            {"member_idx": ((recipe.turns,), np.dtype("<u2")), "count_idx": form},
            [("member_idx", members), ("count_idx", counts)],
            made_from=f"{len(recipe.units)} weights",
        )

    def build(self, recipe: IndexRecipe, data: MMapIndexedDataset, folder: Path) -> None:
        """Fill the empty ``folder``: the arrays, flushed, and the manifest last.

        Raises:
            DataError: ``data`` is not what the recipe was made for.
        """
        if self.fingerprint(data) != recipe.idx_sha256:
            raise DataError(
                f"{index_file_path(data.prefix)}: was changed between the look at the data and the "
                "building of its index maps\n  to do: start again when nobody writes to it"
            )
        # A copy: the index file's sizes are not aligned, and gathering from them would be slow.
        sizes = data.sizes[recipe.first_document : recipe.stop_document].astype(np.int32)
        if recipe.packing == "packed":
            shape = recipe.shape()
            forms, pieces = shape.arrays(), build_pieces(shape, sizes, recipe.seed)
        else:
            documents, epochs = recipe.whole_documents(), tuple(recipe.options["epoch_samples"])
            kept = documents.kept(sizes)
            forms = documents.forms(len(kept), epochs)
            pieces = documents.build_pieces(kept, sizes, epochs)
        write_arrays(folder, recipe, forms, pieces, made_from=os.path.abspath(data.prefix))

    def fingerprint(self, data: MMapIndexedDataset) -> str:
        """SHA-256 of the ``.idx`` file of ``data``; its content is checked before it is trusted.

        Remembered under path, size and times of change, so that a file is read once. Where the store
        cannot be written it is read each time.

        Raises:
            DataError: the file makes no sense.
        """

        def find(path: str) -> str:
            data.verify()
            return content_hash(map_file(path))

        return self._once_per_file("fingerprints", index_file_path(data.prefix), find)

    def content(self, data: MMapIndexedDataset) -> str:
        """A hash of pieces of the ``.bin`` file of ``data``, spread over all of it.

        It tells files apart whose index is the same; reading all would take too long. Remembered like
        :meth:`fingerprint`.
        """

        def find(path: str) -> str:
            raw, digest = data.tokens.view(np.uint8), hashlib.sha256()
            for start in np.linspace(0, max(0, raw.size - _LOOK_BYTES), _LOOKS).astype(np.int64):
                digest.update(raw[start : start + _LOOK_BYTES].tobytes())
            return digest.hexdigest()[:32]

        return self._once_per_file("contents", data_file_path(data.prefix), find)

    def _once_per_file(self, kind: str, path: str, find: Callable[[str], str]) -> str:
        """What ``find`` says of a file, remembered under its path, size and times of change.

        The time at which its content was changed is carried along by copies (``rsync -a``), which then cannot
        be told from it. That at which the file itself was changed nobody can set.
        """
        path = os.path.abspath(path)
        status = os.stat(path)
        facts = {
            "path": path,
            "bytes": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "ctime_ns": status.st_ctime_ns,
        }
        remembered = self.recall(kind, facts, name=path)
        if remembered is not None:
            return str(remembered)
        found = find(path)
        self.remember(kind, facts, found, name=path)
        return found

    def recall(self, kind: str, facts: Mapping[str, Any], *, name: str | None = None) -> Any:
        """What :meth:`remember` was given for the same ``facts``; None where there is nothing."""
        with suppress(OSError, ValueError):  # not seen before, or cut
            found = json.loads(self._memory(kind, facts, name).read_bytes())
            if found["facts"] == facts:
                return found.get("value")
        return None

    def remember(
        self, kind: str, facts: Mapping[str, Any], value: Any, *, name: str | None = None
    ) -> None:
        """Keep what took long to find out, as JSON; nothing happens where the store cannot be written.

        Args:
            kind: folder to keep it in.
            facts: what it depends on.
            value: what was found.
            name: of what it was found about; other facts about the same replace it. Default: ``facts``.
        """
        memory = self._memory(kind, facts, name)
        with suppress(OSError):
            memory.parent.mkdir(parents=True, exist_ok=True)
            content = json.dumps({"facts": facts, "value": value}).encode()
            replace_file(memory, content, flush=False)

    def _memory(self, kind: str, facts: Mapping[str, Any], name: str | None) -> Path:
        return self.root / kind / f"{hash_of(name if name is not None else facts)}.json"
