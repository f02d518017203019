"""The layout-free form: a file for each state of each parameter of the whole model.

::

    global_step<N>/zero/<parameter>/fp32.pt         {"param": the value}, as DeepSpeed's universal
    global_step<N>/zero/<parameter>/exp_avg.pt      checkpoints name them
    global_step<N>/zero/<parameter>/exp_avg_sq.pt
    global_step<N>/configs/                         as the run wrote them
    global_step<N>/manifest.json                    state of the run, sizes of files, shapes, counters

Padding of the vocabulary is stored as it was; weights that are tied are stored once.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.neox_folder import open_neox
from megatron.checkpointing.tensor_files import read_safely
from megatron.checkpointing.universal import ParameterStore, WholeModel
from megatron.checkpointing.universal_ranks import RankFiles
from megatron.errors import CheckpointError
from megatron.neox_arguments.sections import ModelArgs
from megatron.runtime.durable import new_file

FOLDER = "zero"
_PARAMETER = "param"


def open_store(
    info: CheckpointInfo,
    *,
    with_optimizer: bool = True,
    model: ModelArgs | None = None,
    vocab_size: int | None = None,
) -> ParameterStore:
    """The parameters of a checkpoint of any form.

    Args:
        info: from :func:`~megatron.checkpointing.find.find_checkpoint`.
        with_optimizer: the optimizer's state too, if there is any.
        model: what a checkpoint of GPT-NeoX's has to be of; ours say themselves what they are of.
        vocab_size: ids of the tokenizer that goes with such a checkpoint.

    Raises:
        CheckpointError: a file is missing or damaged, or lacks what it should hold.
    """
    if info.manifest is not None and info.manifest.whole is not None:
        return WholeFiles(info)
    if info.manifest is None and model is not None:
        return open_neox(info, model, vocab_size)
    return RankFiles(info, with_optimizer=with_optimizer)


class WholeFiles:
    """A layout-free checkpoint as a store: what a single rank would have held.

    Attributes:
        size, shapes, states, engine, vocab_size: see
            :class:`~megatron.checkpointing.universal.ParameterStore`.
    """

    size = 1

    def __init__(self, info: CheckpointInfo) -> None:
        assert info.manifest is not None
        assert info.manifest.whole is not None
        whole = info.manifest.whole
        self._path = info.path
        self.shapes = whole.parameters
        self.states = whole.states
        self.engine = whole.engine
        self.vocab_size: int | None = info.state.get("vocab_size")

    def read(self, state: str, name: str, rank: int) -> Tensor:
        path = self._path / file_name(state, name)
        tensor = read_safely(path).get(_PARAMETER)
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != self.shapes[name]:
            raise CheckpointError(
                f"{path} is damaged: it holds no tensor of shape {self.shapes[name]}, as the manifest says"
            )
        return tensor


def file_name(state: str, name: str) -> str:
    """Where one state of a parameter lies, inside the checkpoint's folder."""
    return f"{FOLDER}/{name}/{state}.pt"


def write_parameter(folder: Path, state: str, name: str, tensor: Tensor) -> tuple[str, int]:
    """Write one state of a whole parameter, flushed.

    Returns:
        The path of the file inside ``folder``, and its size in bytes.
    """
    if tensor.untyped_storage().nbytes() != tensor.nbytes:
        tensor = tensor.clone()  # of a view all would be stored that it is a view of
    file = file_name(state, name)
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as opened:
        torch.save({_PARAMETER: tensor.contiguous()}, opened)
        opened.flush()
        return file, opened.tell()


def bytes_of(whole: WholeModel) -> int:
    """How many bytes the tensors of a whole model take in this form."""
    numbers = sum(math.prod(shape) for shape in whole.parameters.values())
    return 4 * numbers * len(whole.states)
