"""Tuning a soft prompt: vectors in front of each sample learn, and the model stays as it is.

A sample keeps all of its tokens and labels: the model reads the vectors and then the sample, and gives
logits for the sample's tokens alone, so that every loss is over the same labels as without a prompt.
(GPT-NeoX puts the vectors in the place of a sample's last tokens, and so trains on less text.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from megatron.checkpointing import CheckpointInfo
from megatron.errors import ConfigError
from megatron.logging import get_logger
from megatron.model import GPT2Model, layout
from megatron.neox_arguments.sections.variants import SoftPrompt
from megatron.tokenizer import Tokenizer

log = get_logger(__name__)

# Its name in the whole model.
PROMPT = f"sequential.{layout.EMBEDDING}.{layout.SOFT_PROMPT}"


def train_prompt_alone(model: nn.Module) -> None:
    """Freeze everything but the prompt: it has no gradients and no optimizer state."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == PROMPT)


def has_prompt(found: CheckpointInfo) -> bool:
    """Whether a run that tuned a prompt wrote the checkpoint."""
    return bool(found.state.get("soft_prompt"))


def prompt_facts(prompt: SoftPrompt | None) -> dict[str, int]:
    """What a checkpoint remembers of it; nothing without one."""
    return {} if prompt is None else {"soft_prompt": prompt.num_tokens}


def require_weights(prompt: SoftPrompt | None, found: CheckpointInfo | None) -> None:
    """Refuse to tune the prompt of a model that knows nothing.

    Raises:
        ConfigError: there is no checkpoint.
    """
    if prompt is not None and found is None:
        raise ConfigError(
            "soft_prompt_tuning: trains nothing but the prompt, and there is no model to start from\n"
            "  to do: set load to a model's checkpoints, and finetune: true",
            everywhere=True,
        )


@torch.no_grad()
def start_from_text(model: GPT2Model, prompt: SoftPrompt, tokenizer: Tokenizer) -> None:
    """Let the vectors start as the embeddings of ``init_string``, if there is one.

    A text of fewer tokens is repeated, a longer one cut.

    Raises:
        ConfigError: the text has no tokens.
    """
    if not prompt.init_string:
        return
    ids: Sequence[int] = tokenizer.tokenize(prompt.init_string)
    if not ids:
        raise ConfigError(
            "soft_prompt_tuning.init_string: the tokenizer makes no token of "
            f"{prompt.init_string!r}",
            everywhere=True,
        )
    count = prompt.num_tokens
    embedding = model.sequential[layout.EMBEDDING]
    target = embedding.soft_embedding_weight
    repeated = torch.tensor(list(ids) * -(-count // len(ids)), device=target.device)[:count]
    # What a text's embeddings look like behind the table, where the prompt is put.
    target.copy_(embedding.word_embeddings(repeated) * embedding.scale)
    log.info("the soft prompt starts as the first %d tokens of %r", count, prompt.init_string)
