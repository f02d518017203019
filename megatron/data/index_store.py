"""Index maps on disk: named by everything that they depend on, complete or not there, mapped to read.

    root/<key>/doc_idx.npy, sample_idx.npy, shuffle_idx.npy, manifest.json
    root/fingerprints/<hash of the path>.json    content hash of an ``.idx`` file seen before

The key is a hash of the recipe: change the data, the split, the seed or the code that builds, and it
is another key; nothing is ever reused by mistake. Who builds and who waits is not decided here (see
:mod:`megatron.runtime.fs_barrier`).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from megatron.data.index_maps import ARRAY_NAMES, IndexShape, Order, build_pieces
from megatron.data.indexed_dataset import MMapIndexedDataset, index_file_path
from megatron.data.mapping import map_file
from megatron.errors import DataError
from megatron.runtime.durable import new_file, replace_file

FORMAT_VERSION: Final = (
    1  # of the arrays, of the recipe and of the code that makes the one from the other
)
MANIFEST: Final = "manifest.json"
DEFAULT_FOLDER: Final = "index_store"
_HASH_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True)
class IndexRecipe:
    """Everything that the index maps of one split depend on.

    Attributes:
        idx_sha256: content of the ``.idx`` file.
        bin_bytes: size of the ``.bin`` file.
        first_document, stop_document: the split's documents.
        tokens_per_epoch: their tokens.
        epochs: how often each occurs.
        seq_length: tokens per sample, less one.
        seed, order, packing: how samples are cut and shuffled.
        options: those of the packing.
        companions: content hashes of label and reward files, by role.
    """

    idx_sha256: str
    bin_bytes: int
    first_document: int
    stop_document: int
    tokens_per_epoch: int
    epochs: int
    seq_length: int
    seed: int
    order: Order
    packing: str = "packed"
    options: Mapping[str, Any] = field(default_factory=dict)
    companions: Mapping[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def key(self) -> str:
        """Name of the folder that holds the maps."""
        return _hash_of(asdict(self))

    @property
    def order_key(self) -> str:
        """Equal for two runs that read the same samples in the same order, as far as both go.

        The number of epochs changes GPT-NeoX's order from the first sample on, but not that of
        epochs that are shuffled by themselves.
        """
        return _hash_of(self.order_facts())

    def order_facts(self) -> dict[str, Any]:
        """What :attr:`order_key` is made of."""
        facts = asdict(self)
        if self.order == "epochs":
            del facts["epochs"]
        return facts

    def shape(self) -> IndexShape:
        """The sizes of the maps."""
        return IndexShape(
            self.first_document,
            self.stop_document,
            self.tokens_per_epoch,
            self.seq_length,
            self.epochs,
            self.order,
        )


class IndexMaps:
    """The maps of one split, mapped read-only. Pickling sends the folder only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _read_manifest(folder)
        self.doc_idx, self.sample_idx, self.shuffle_idx = (
            _map_array(folder, name, self.manifest["arrays"][name]) for name in ARRAY_NAMES
        )

    def __reduce__(self) -> tuple[type[IndexMaps], tuple[Path]]:
        return type(self), (self.folder,)

    @property
    def digest(self) -> str:
        """Equal where recipe and content are."""
        return _hash_of({part: self.manifest[part] for part in ("key", "recipe", "arrays")})

    def verify(self) -> None:
        """Read every byte and compare it with the checksums of the manifest.

        Raises:
            DataError: something differs.
        """
        for name in ARRAY_NAMES:
            entry = self.manifest["arrays"][name]
            path = self.folder / entry["file"]
            found = _content_hash(map_file(path))
            if found != entry["sha256"]:
                raise DataError(
                    f"{path}: SHA-256 is {found}, {MANIFEST} says {entry['sha256']}: the file is "
                    f"damaged; remove the folder {self.folder}, it is built again"
                )


class IndexStore:
    """The folder ``root`` of index maps. Nothing is written before something is built."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def is_whole(self, folder: Path) -> bool:
        """Whether ``folder`` holds a manifest and every array that it names, each of its size."""
        try:
            IndexMaps(folder)
        except DataError:
            return False
        return True

    def open(self, recipe: IndexRecipe) -> IndexMaps:
        """Map what has been published for ``recipe``.

        Raises:
            DataError: it is not there or not whole.
        """
        return IndexMaps(self.root / recipe.key)

    def build(self, recipe: IndexRecipe, data: MMapIndexedDataset, folder: Path) -> None:
        """Fill the empty ``folder``: the arrays, flushed, and the manifest last."""
        shape = recipe.shape()
        # A copy: the index file's sizes are not aligned, and gathering from them would be slow.
        sizes = data.sizes[recipe.first_document : recipe.stop_document].astype(np.int32)
        with ExitStack() as files:
            writers = {
                name: files.enter_context(_ArrayWriter.open(folder / f"{name}.npy", *form))
                for name, form in shape.arrays().items()
            }
            for name, piece in build_pieces(shape, sizes, recipe.seed):
                writers[name].write(piece)
        manifest = {
            "key": recipe.key,
            "recipe": asdict(recipe),
            "arrays": {name: writer.entry() for name, writer in writers.items()},
            "made": {
                "from": os.path.abspath(data.prefix),
                "on": socket.gethostname(),
                "at": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            },
        }
        with new_file(folder / MANIFEST) as file:
            file.write(json.dumps(manifest, indent=1).encode())

    def fingerprint(self, data: MMapIndexedDataset) -> str:
        """SHA-256 of the ``.idx`` file of ``data``; its content is checked before it is trusted.

        Remembered under path, size and time of change, so that a file is read once. Where the store
        cannot be written it is read each time.

        Raises:
            DataError: the file makes no sense.
        """
        path = os.path.abspath(index_file_path(data.prefix))
        status = os.stat(path)
        facts = {"path": path, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
        folder = self.root / "fingerprints"
        memory = folder / f"{_hash_of(path)}.json"
        with suppress(OSError, ValueError):  # not seen before, or cut: read the file itself
            remembered = json.loads(memory.read_bytes())
            if remembered["facts"] == facts:
                return str(remembered["sha256"])
        data.verify()
        sha256 = _content_hash(map_file(path))
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(memory, json.dumps({"facts": facts, "sha256": sha256}).encode())
        return sha256


class _ArrayWriter:
    """Write one ``.npy`` file in pieces, hashing as it goes."""

    def __init__(self, file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._file, self._shape, self._dtype = file, shape, dtype
        self._hash = hashlib.sha256()
        self._bytes = self._left = 0
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": dtype.str, "fortran_order": False, "shape": shape}
        )
        self._put(header.getvalue())
        self._left = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Iterator[_ArrayWriter]:
        with new_file(path) as file:
            yield cls(file, shape, dtype)

    def write(self, piece: npt.NDArray[Any]) -> None:
        assert piece.dtype == self._dtype
        assert piece.shape[1:] == self._shape[1:]
        self._left -= piece.nbytes
        self._put(np.ascontiguousarray(piece).data.cast("B"))

    def entry(self) -> dict[str, Any]:
        """What the manifest says about the file, once all pieces are written."""
        assert self._left == 0
        return {
            "file": os.path.basename(self._file.name),
            "dtype": self._dtype.str,
            "shape": list(self._shape),
            "bytes": self._bytes,
            "sha256": self._hash.hexdigest(),
        }

    def _put(self, content: bytes | memoryview) -> None:
        self._file.write(content)
        self._hash.update(content)
        self._bytes += len(content)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        why = "is no JSON" if isinstance(error, ValueError) else "cannot be read"
        raise DataError(
            f"{path}: {why}: the index maps are damaged; remove the folder {folder}, it is built again"
        ) from None
    if not isinstance(manifest, dict) or not manifest.get("arrays", {}).keys() >= set(ARRAY_NAMES):
        raise DataError(f"{path}: names no arrays: remove the folder {folder}, it is built again")
    return manifest


def _map_array(folder: Path, name: str, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The array of a ``.npy`` file, mapped; its form is the manifest's, nothing is unpickled."""
    path = folder / str(entry["file"])
    try:
        raw = map_file(path)
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}: remove the folder {folder}, it is built again"
        ) from None
    if raw.size != entry["bytes"]:
        raise DataError(
            f"{path}: has {raw.size:,} bytes, {MANIFEST} says {entry['bytes']:,}: the file is cut; remove "
            f"the folder {folder}, it is built again"
        )
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    content = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    array: npt.NDArray[Any] = raw[raw.size - content :].view(dtype).reshape(shape)
    return array


def _content_hash(content: npt.NDArray[np.uint8]) -> str:
    digest = hashlib.sha256()
    for at in range(0, content.size, _HASH_BYTES):
        digest.update(content[at : at + _HASH_BYTES].data)
    return digest.hexdigest()


def _hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
