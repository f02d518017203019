"""Everything that an index depends on, and the name that follows from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final

from megatron.data.index_maps import IndexShape, Order
from megatron.data.whole_documents import WholeDocuments
from megatron.neox_arguments.sections.data import PackImpl

# Of the arrays, of the recipe and of the code that makes the one from the other.
FORMAT_VERSION: Final = 1


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
    packing: PackImpl = "packed"
    options: Mapping[str, Any] = field(default_factory=dict)
    companions: Mapping[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @cached_property
    def key(self) -> str:
        """Name of the folder that holds the maps."""
        return hash_of(asdict(self))

    def order_facts(self) -> dict[str, Any]:
        """Equal for two runs that read the same samples in the same order, as far as both go.

        The number of epochs changes GPT-NeoX's order from the first sample on, but not that of
        epochs that are shuffled by themselves.
        """
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


def hash_of(value: Any) -> str:
    """A short hash of what can be written as JSON; it does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
