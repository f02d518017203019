"""A checkpoint that no run has written: weights of all ranks, configuration, manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron.checkpointing.folders import EFFECTIVE_CONFIG_NAME
from megatron.checkpointing.manifest import EngineFacts, Manifest
from megatron.checkpointing.publishing import Place, finish, time_now, versions
from megatron.checkpointing.save import effective_text, write_configs
from megatron.conversion.parameters import Parameter
from megatron.conversion.rank_files import Read, write_rank_files
from megatron.neox_arguments import NeoXArgs

# The configuration of an imported model.
RUN_FILE = "model.yml"


@dataclass(frozen=True)
class NewModel:
    """What goes into a checkpoint.

    Attributes:
        args: the configuration, which names the layout of the files.
        text: of :data:`RUN_FILE`.
        vocab_size: ids of the model.
        parameters: of the whole model, in the order of the layers, with all rows of the vocabulary.
        read: gives them in the dtype of the files.
        origin: where the model comes from.
    """

    args: NeoXArgs
    text: str
    vocab_size: int
    parameters: Sequence[Parameter]
    read: Read
    origin: Path

    @property
    def rows(self) -> int:
        """Of the embedding over all ranks."""
        return self.parameters[0].shape[0]


def write_checkpoint(place: Place, model: NewModel) -> Manifest:
    """Fill the private folder of a checkpoint, manifest and all; it has its name to get yet.

    Raises:
        OSError: the disk refuses.
    """
    ranks, folder = model.args.parallelism, place.unfinished
    files = write_rank_files(
        folder,
        model.args.model,
        model.parameters,
        model.read,
        model_parallel_size=ranks.model_parallel_size,
        pipe_parallel_size=ranks.pipe_parallel_size,
    )
    texts = {EFFECTIVE_CONFIG_NAME: effective_text(model.args.flat()), RUN_FILE: model.text}
    files |= write_configs(folder, texts)
    manifest = Manifest(
        step=place.step,
        state={
            "step": place.step,
            "consumed_samples": 0,
            "vocab_size": model.vocab_size,
            "padded_vocab_size": model.rows,
        },
        layout={"converted_from": str(model.origin.absolute())},
        engine=_facts(model.args),
        config_hash=model.args.hash(),
        versions=versions(),
        has_optimizer=False,
        node_local=False,
        disks=[dict(sorted(files.items()))],
        created=time_now(),
    )
    finish(place, manifest, manifest.files_of(0))
    return manifest


def _facts(args: NeoXArgs) -> EngineFacts:
    ranks = args.parallelism
    return EngineFacts(
        world_size=ranks.model_parallel_size * max(1, ranks.pipe_parallel_size),
        data_parallel_size=1,
        model_parallel_size=ranks.model_parallel_size,
        zero_stage=0,
        precision=args.model.precision,
        pipe_parallel_size=ranks.pipe_parallel_size,
    )
