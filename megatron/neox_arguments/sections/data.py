"""From text to tokens, and from token files to samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from megatron.neox_arguments.typed import NonNegativeInt, PositiveFloat, Range

PackImpl = Literal["packed", "pack_until_overflow", "unpacked"]
"""The values that ``pack_impl`` may have."""


@dataclass(frozen=True)
class TokenizerArgs:
    """Which tokenizer, and its files."""

    tokenizer_type: Literal[
        "GPT2BPETokenizer",
        "HFTokenizer",
        "HFGPT2Tokenizer",
        "CharLevelTokenizer",
        "SPMTokenizer",
        "TiktokenTokenizer",
    ] = "GPT2BPETokenizer"
    """The tokenizer that made the token files. SPMTokenizer needs the package sentencepiece."""

    vocab_file: str | None = None
    """The tokenizer's vocabulary: `vocab.json` of GPT-2, a `tokenizer.json`, a SentencePiece model, or for
    TiktokenTokenizer the name of an encoding (`cl100k_base`) that is in tiktoken's cache, or a local file
    of that name (`cl100k_base.tiktoken`). Nothing is downloaded."""

    merge_file: str | None = None
    """`merges.txt` of GPT-2."""


@dataclass(frozen=True)
class DataArgs:
    """Token files, how they are split, indexed, shared and read."""

    data_path: str | None = None
    """Token files without their ending: `data/mydataset_text_document` for `.bin` and `.idx`."""

    train_data_paths: tuple[str, ...] | None = None
    """Instead of `data_path`: the token files of a training blend, up to 1,000, each as a whole. The index
    is beside the first one, or in `index_cache_dir`."""

    valid_data_paths: tuple[str, ...] | None = None
    """Likewise for validation. Without it there is none."""

    test_data_paths: tuple[str, ...] | None = None
    """Likewise for the test split."""

    train_label_data_paths: tuple[str, ...] | None = None
    """A label file for each of `train_data_paths`, with the same documents of the same lengths. It holds
    the id to learn at each token's place, or -100 for none. Default: the tokens are the labels."""

    valid_label_data_paths: tuple[str, ...] | None = None
    """Likewise for `valid_data_paths`."""

    test_label_data_paths: tuple[str, ...] | None = None
    """Likewise for `test_data_paths`."""

    train_data_weights: tuple[PositiveFloat, ...] | None = None
    """How much each of `train_data_paths` counts, in any unit. Default: all alike; with `train_epochs` each
    as much as it holds."""

    valid_data_weights: tuple[PositiveFloat, ...] | None = None
    """Likewise for `valid_data_paths`. Default: all alike."""

    test_data_weights: tuple[PositiveFloat, ...] | None = None
    """Likewise for `test_data_paths`. Default: all alike."""

    weight_by_num_documents: bool = False
    """true weighs the members of all blends by their documents, in place of `*_data_weights`."""

    weighted_sampler_alpha: Annotated[float, Range(low=0)] = 1.0
    """`weight_by_num_documents`: weights are documents to this power; 1 follows the data, 0 treats
    all alike."""

    split: str = "969, 30, 1"
    """Shares of the documents for training, validation and test, in any unit."""

    data_impl: Literal["infer", "mmap", "cached"] = "infer"
    """How token files are opened. `mmap` maps them; `infer` looks at the file and maps it; `cached` holds
    the tokens in memory, one copy per node shared by its ranks and workers, whatever the file's form
    (`eval.py` reads each token once and maps the file)."""

    pack_impl: PackImpl = "packed"
    """How documents become samples. `packed` cuts the stream of all documents into equal pieces.
    `unpacked` makes each document a sample, `pack_until_overflow` puts whole documents into one until the
    next does not fit; what is left of it is padding, which does not count for the loss."""

    allow_chopped: bool = True
    """Whole documents (`pack_impl`) longer than `seq_length` + 1: true cuts them there, false leaves them
    out."""

    data_order: Literal["neox", "epochs"] = "neox"
    """Order of the samples. `neox`: GPT-NeoX's own order, one shuffle over all epochs. `epochs`: each
    epoch shuffled by itself, so that the order does not depend on how many steps the run has."""

    mmap_warmup: bool = False
    """Read the token files once at the start, by one process per node, so that they are in memory. Left out,
    with a warning, where they are larger than the memory that is available."""

    data_local_cache_dir: str | None = None
    """Folder on each node's own disk to which the token files are copied before training, once per node;
    the run then reads the copies, and the next job finds them there. A run that finds no room stops."""

    data_local_cache_limit_gb: PositiveFloat | None = None
    """Size that all copies in `data_local_cache_dir` may take, in 10^9 bytes; those that are unused for
    longest go first, those that a living job uses stay. Default: as much as the disk has."""

    num_workers: NonNegativeInt = 2
    """Processes per rank that prepare batches; 0 prepares them in the rank itself."""

    use_shared_fs: bool = True
    """true: all nodes see the same file system, and one rank builds the index for all. false: every
    node has its own disk and builds its own."""

    index_cache_dir: str | None = None
    """Folder of the index files. Default: beside the data."""

    index_build_timeout_s: PositiveFloat = 1800.0
    """Seconds that a rank waits for the index that another one builds; also how long copying or reading
    ahead may go on without getting a byte."""

    allow_data_change: bool = False
    """On resume: go on although data, split, order or seed are not what the checkpoint was trained on."""

    eval_same_samples: bool = False
    """true evaluates on the same validation samples each time, false on the next ones."""

    eod_mask_loss: bool = False
    """true leaves out of the loss what is predicted from an end-of-document token: how the next, unrelated
    document begins."""

    reset_position_ids: bool = False
    """true counts positions from 0 again where a document begins within a sample. Where that is, the index
    knows, whatever tokens the documents end with."""

    reset_attention_mask: bool = False
    """true keeps the documents of a sample apart: no token attends to one of another document. Costs less
    than attention over the whole sample; on GPUs most with `precision: bfloat16` and no
    `attention_dropout`, which one kernel does for all documents at once."""

    @property
    def shares(self) -> tuple[float, float, float]:
        """`split` as numbers: training, validation, test. Those that are not written are 0."""
        written = [float(share) for share in self.split.replace("/", ",").split(",")]
        first, second, third = (*written, 0.0, 0.0)[:3]
        return first, second, third
