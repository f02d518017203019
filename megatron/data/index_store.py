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
import io
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from megatron.data.blend import counts_before, turns
from megatron.data.index_maps import ARRAY_NAMES, IndexShape, Order, build_pieces
from megatron.data.indexed_dataset import MMapIndexedDataset, data_file_path, index_file_path
from megatron.data.mapping import map_file
from megatron.data.whole_documents import WholeDocuments
from megatron.errors import DataError
from megatron.runtime.durable import new_file, replace_file

FORMAT_VERSION: Final = (
    1  # of the arrays, of the recipe and of the code that makes the one from the other
)
MANIFEST: Final = "manifest.json"
DEFAULT_FOLDER: Final = "index_store"
_HASH_BYTES: Final = 32 * 1024 * 1024
_LOOKS: Final = 16  # pieces of a .bin file that tell it from another
_LOOK_BYTES: Final = 4096


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
        options: those of the packing. Of whole documents: ``allow_chopped``, and ``epoch_samples``, the
            samples of each epoch, which follow from the rest.
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
    packing: Literal["packed", "unpacked", "pack_until_overflow"] = "packed"
    options: Mapping[str, Any] = field(default_factory=dict)
    companions: Mapping[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @cached_property
    def key(self) -> str:
        """Name of the folder that holds the maps."""
        return hash_of(asdict(self))

    @property
    def order_key(self) -> str:
        """Equal for two runs that read the same samples in the same order, as far as both go.

        The number of epochs changes GPT-NeoX's order from the first sample on, but not that of
        epochs that are shuffled by themselves.
        """
        return hash_of(self.order_facts())

    def order_facts(self) -> dict[str, Any]:
        """What :attr:`order_key` is made of."""
        facts = asdict(self)
        if self.order == "epochs":
            del facts["epochs"]
            facts["options"].pop("epoch_samples", None)
        return facts

    @property
    def samples(self) -> int:
        """All samples that the maps give."""
        if self.packing == "packed":
            return self.shape().samples
        return sum(self.options["epoch_samples"])

    def whole_documents(self) -> WholeDocuments:
        """How whole documents become samples; of a packing that keeps them whole."""
        assert self.packing != "packed"
        return WholeDocuments(
            self.first_document,
            self.stop_document,
            self.seq_length,
            self.seed,
            self.packing,
            self.options["allow_chopped"],
        )

    def shape(self) -> IndexShape:
        """The sizes of the maps of packed samples."""
        return IndexShape(
            self.first_document,
            self.stop_document,
            self.tokens_per_epoch,
            self.seq_length,
            self.epochs,
            self.order,
        )


@dataclass(frozen=True)
class BlendRecipe:
    """Everything that the order of a blend's members depends on; see :mod:`megatron.data.blend`.

    Attributes:
        units: the members' weights as whole numbers.
        turns: the first turns that are kept: one period, or fewer where the run takes fewer.
    """

    units: tuple[int, ...]
    turns: int
    kind: str = "blend"
    format_version: int = FORMAT_VERSION

    @cached_property
    def key(self) -> str:
        """Name of the folder that holds the arrays."""
        return hash_of(asdict(self))


class StoredArrays:
    """A published folder of arrays, mapped read-only. Pickling sends the folder only.

    Attributes:
        NAMES: the arrays that have to be in it.
    """

    NAMES: ClassVar[tuple[str, ...]] = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _read_manifest(folder, self.NAMES)
        self.arrays = {
            name: _map_array(folder, name, entry) for name, entry in self.manifest["arrays"].items()
        }

    def __reduce__(self) -> tuple[type[StoredArrays], tuple[Path]]:
        return type(self), (self.folder,)

    @property
    def digest(self) -> str:
        """Equal where recipe and content are."""
        return hash_of({part: self.manifest[part] for part in ("key", "recipe", "arrays")})

    def verify(self) -> None:
        """Read every byte and compare it with the checksums of the manifest.

        Raises:
            DataError: something differs.
        """
        for entry in self.manifest["arrays"].values():
            path = self.folder / entry["file"]
            found = _content_hash(map_file(path))
            if found != entry["sha256"]:
                raise DataError(
                    f"{path}: SHA-256 is {found}, {MANIFEST} says {entry['sha256']}: the file is "
                    f"damaged; remove the folder {self.folder}, it is built again"
                )


class IndexMaps(StoredArrays):
    """The maps of one split of one token file."""

    NAMES = ARRAY_NAMES

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.doc_idx, self.sample_idx, self.shuffle_idx = (
            self.arrays[name] for name in ARRAY_NAMES
        )


class BlendMaps(StoredArrays):
    """The turns of a blend: whose it is, and how often it has given before (in this period)."""

    NAMES = ("member_idx", "count_idx")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.member_idx, self.count_idx = (self.arrays[name] for name in self.NAMES)


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
        _fill(
            folder,
            recipe,
            {"member_idx": ((recipe.turns,), np.dtype("<u2")), "count_idx": form},
            [("member_idx", members), ("count_idx", counts)],
            made_from=f"{len(recipe.units)} weights",
        )

    def build(self, recipe: IndexRecipe, data: MMapIndexedDataset, folder: Path) -> None:
        """Fill the empty ``folder``: the arrays, flushed, and the manifest last."""
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
        _fill(folder, recipe, forms, pieces, made_from=os.path.abspath(data.prefix))

    def fingerprint(self, data: MMapIndexedDataset) -> str:
        """SHA-256 of the ``.idx`` file of ``data``; its content is checked before it is trusted.

        Remembered under path, size and time of change, so that a file is read once. Where the store
        cannot be written it is read each time.

        Raises:
            DataError: the file makes no sense.
        """

        def find(path: str) -> str:
            data.verify()
            return _content_hash(map_file(path))

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
        """What ``find`` says of a file, remembered under its path, size and time of change."""
        path = os.path.abspath(path)
        status = os.stat(path)
        facts = {"path": path, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
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


def _fill(
    folder: Path,
    recipe: IndexRecipe | BlendRecipe,
    forms: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]],
    pieces: Iterable[tuple[str, npt.NDArray[Any]]],
    *,
    made_from: str,
) -> None:
    """Write the arrays piece by piece, flushed, and the manifest last."""
    with ExitStack() as files:
        writers = {
            name: files.enter_context(_ArrayWriter.open(folder / f"{name}.npy", *form))
            for name, form in forms.items()
        }
        for name, piece in pieces:
            writers[name].write(piece)
    manifest = {
        "key": recipe.key,
        "recipe": asdict(recipe),
        "arrays": {name: writer.entry() for name, writer in writers.items()},
        "made": {
            "from": made_from,
            "on": socket.gethostname(),
            "at": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        },
    }
    with new_file(folder / MANIFEST) as file:
        file.write(json.dumps(manifest, indent=1).encode())


def _read_manifest(folder: Path, names: tuple[str, ...]) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        why = "is no JSON" if isinstance(error, ValueError) else "cannot be read"
        raise DataError(
            f"{path}: {why}: the index maps are damaged; remove the folder {folder}, it is built again"
        ) from None
    arrays = manifest.get("arrays") if isinstance(manifest, dict) else None
    if not isinstance(arrays, dict) or not arrays or not arrays.keys() >= set(names):
        raise DataError(f"{path}: names no arrays: remove the folder {folder}, it is built again")
    found: dict[str, Any] = manifest
    return found


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


def hash_of(value: Any) -> str:
    """A short hash of what can be written as JSON; it does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
