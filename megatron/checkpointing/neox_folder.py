"""What a folder that GPT-NeoX wrote says about its model, and whether that is the model of a configuration.

::

    global_step<N>/mp_rank_<MM>_model_states.pt        "module", "iteration", "args" and much else; or
    global_step<N>/layer_<LL>-model_<MM>-model_states.pt
    global_step<N>/configs/*.yml                       from release 2 on, the files that the run was given

Only weights are taken from it. They would fill a model of another kind just as well (another base of the
rotary embedding, another activation), so what the folder says is compared with the configuration first:
its own configuration where it has one, else the few facts in its files, and the shapes of its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from megatron.checkpointing.inert_objects import Inert
from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.neox_files import NeoXFiles
from megatron.checkpointing.neox_shapes import differences_in_shapes
from megatron.checkpointing.same_model import model_differences
from megatron.checkpointing.tensor_files import read_weights_file
from megatron.errors import CheckpointError
from megatron.neox_arguments.files import read_files
from megatron.neox_arguments.problems import Problems
from megatron.neox_arguments.sections import ModelArgs
from megatron.tokenizer import padded_vocab_size

_FACTS_FILE = "mp_rank_00_model_states.pt"
_CONFIGS = "configs/"
_VOCABULARY_MULTIPLE = "make_vocab_size_divisible_by"

# Without these a configuration is a part of one, whose other keys mean nothing.
_COMPLETE = {"num_layers", "hidden_size"}


@dataclass(frozen=True)
class Stated:
    """What a folder says beside its weights.

    Attributes:
        keys: of the model, as they were given.
        source: where they were found, for messages; empty where nowhere.
    """

    keys: Mapping[str, Any]
    source: str


def open_neox(info: CheckpointInfo, model: ModelArgs, vocab_size: int | None) -> NeoXFiles:
    """The weights in a folder of GPT-NeoX's, which are of the model that the configuration describes.

    Args:
        info: the checkpoint, without a manifest of ours.
        model: the model's section of the configuration.
        vocab_size: ids of the tokenizer. Where the rows of the embedding are what GPT-NeoX makes of
            that number, those behind are padding, and a run of another layout needs not have them.

    Raises:
        CheckpointError: the folder is of another model: all differences in one message.
    """
    stated = what_it_says(info.path)
    store = NeoXFiles(info.path, model)
    multiple = stated.keys.get(_VOCABULARY_MULTIPLE, model.make_vocab_size_divisible_by)
    rows = store.shapes.get("sequential.0.word_embeddings.weight", (0,))[0] * store.size
    if vocab_size is not None and rows == padded_vocab_size(vocab_size, multiple, store.size):
        store.vocab_size = vocab_size
    wrong = _differences(stated, model)
    named = {line.split(":")[0] for line in wrong}
    wrong += [
        line for line in differences_in_shapes(store, model) if line.split(":")[0] not in named
    ]
    if vocab_size is not None and rows < vocab_size:
        wrong.append(f"vocabulary: {rows:,} rows, the tokenizer has {vocab_size:,} ids")
    if wrong:
        where = f"configuration of {stated.source} and shapes" if stated.source else "shapes"
        shown = "\n".join(f"    {line}" for line in wrong[:6])
        more = f"\n    … {len(wrong) - 6} more" if wrong[6:] else ""
        raise CheckpointError(
            f"{info.path} is not of the model that the configuration describes\n"
            f"  there, in its {where} → here:\n{shown}{more}\n"
            "  to do: take over its values, or load another folder"
        )
    return store


def what_it_says(folder: Path) -> Stated:
    """The model's keys in a folder's own configuration, else in its files.

    Raises:
        CheckpointError: a file is damaged.
    """
    known = {field.name for field in fields(ModelArgs)}
    configs = sorted((folder / "configs").glob("*.yml"))
    # What is wrong with a file that another program has read is of no interest here.
    _, documents = read_files(configs, None, Problems())
    keys = {key: value for document in documents for key, value in document.values.items()}
    if keys.keys() & known:
        given = keys.keys() & known
        return Stated({key: keys[key] for key in given if keys[key] is not None}, _CONFIGS)
    if not (folder / _FACTS_FILE).exists():
        return Stated({}, "")
    facts = read_weights_file(folder / _FACTS_FILE).get("args")
    facts = facts.fields if isinstance(facts, Inert) else facts
    found = {
        key: value
        for key, value in (facts.items() if isinstance(facts, Mapping) else ())
        if key in known and isinstance(value, (int, float, str))
    }
    return Stated(found, _FACTS_FILE if found else "")


def _differences(stated: Stated, model: ModelArgs) -> list[str]:
    """The keys whose meaning there is another one than here: a line each."""
    is_whole = stated.source == _CONFIGS and stated.keys.keys() >= _COMPLETE
    theirs = ModelArgs(**{**({} if is_whole else vars(model)), **stated.keys})
    return model_differences(theirs, model)
