"""A published folder of arrays: written piece by piece with checksums, mapped read-only.

The manifest names the recipe, the arrays with their form, size and SHA-256, and is written last.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final

import numpy as np
import numpy.typing as npt

from megatron.data.index_maps import ARRAY_NAMES
from megatron.data.mapping import map_file
from megatron.data.recipes import BlendRecipe, IndexRecipe, hash_of
from megatron.errors import DataError
from megatron.runtime.durable import new_file

MANIFEST: Final = "manifest.json"
_HASH_BYTES: Final = 32 * 1024 * 1024


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
            found = content_hash(map_file(path))
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


def write_arrays(
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


def content_hash(content: npt.NDArray[np.uint8]) -> str:
    digest = hashlib.sha256()
    for at in range(0, content.size, _HASH_BYTES):
        digest.update(content[at : at + _HASH_BYTES].data)
    return digest.hexdigest()
