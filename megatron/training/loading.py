"""A trained model without an engine: what evaluation and generation need of a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from megatron.checkpointing import CheckpointInfo, find_checkpoint, load_weights
from megatron.errors import CheckpointError, ConfigError
from megatron.logging import get_logger
from megatron.model import GPT2Model
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.path_places import told_where
from megatron.training.resume import check_same_parametrization, note_other_tokenizer
from megatron.training.setup import Parts, build_model

log = get_logger(__name__)


def load_trained_model(
    args: NeoXArgs, parts: Parts, *, shares_sequences: bool = False
) -> tuple[GPT2Model, CheckpointInfo]:
    """The model with the weights of ``load``, on this rank's device, in evaluation mode.

    Only weights are read, nothing of the optimizer, and no file is unpickled beyond tensors.

    Args:
        args: the configuration.
        parts: the parts that need no weights.
        shares_sequences: ranks share sequences as in training, which then are of ``seq_length`` tokens.
            Without, they have any length, and ranks along the context axis are copies of the model.

    Raises:
        ConfigError: ``load`` is not set.
        CheckpointError: there is no checkpoint, or it does not fit the configuration.
    """
    load = args.checkpointing.load
    if load is None:
        raise ConfigError(
            "load is not set: which checkpoint shall be used? Set load: <folder of a run's checkpoints>",
            everywhere=True,
        )
    with told_where(args, "load"):
        found = find_checkpoint(load, args.checkpointing.iteration, world=parts.world, foreign=True)
        if found is None:
            raise CheckpointError(
                f"load: {load} holds no checkpoint\n"
                "  to do: train first (./deepy.py train.py …), or set load to another folder",
                everywhere=True,
            )
    args.check_runtime(iteration=found.step)
    note_other_tokenizer(found, parts)
    check_same_parametrization(found, args, parts.padded_vocab)
    groups = parts.groups if shares_sequences else parts.groups.with_whole_sequences()
    model = build_model(args, replace(parts, groups=groups))
    load_weights(
        model,
        found,
        model_rank=groups.get_model_parallel_rank(),
        model_parallel_size=groups.get_model_parallel_world_size(),
        model=args.model,
        vocab_size=parts.tokenizer.vocab_size,
    )
    log.info("weights of %s (step %s)", found.path, f"{found.step:,}")
    return model.eval(), found
