"""Text generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from megatron.neox_arguments.typed import (
    Ignored,
    NonNegativeFloat,
    NonNegativeInt,
    NotYet,
    PositiveInt,
    Refused,
    Share,
)


@dataclass(frozen=True)
class TextgenArgs:
    """What `generate.py` reads, draws and writes."""

    text_gen_type: (
        Annotated[Literal["unconditional", "input-file", "interactive"], NotYet(("precompute",))]
        | None
    ) = None
    """Text from nothing, from the prompts of a file, or from what is typed. Default: unconditional."""

    temperature: NonNegativeFloat = 0.0
    """0 always takes the likeliest token; above, how evenly tokens are drawn."""

    top_p: Share = 0.0
    """Draw from the smallest set of tokens whose probabilities reach this; 0 draws from all."""

    top_k: NonNegativeInt = 0
    """Draw from this many of the likeliest tokens; 0 draws from all."""

    return_logits: bool = False
    """Write the logits of each generated token beside the text."""

    maximum_tokens: PositiveInt = 64
    """Most tokens to generate per sample."""

    prompt_end: str = "\n"
    """What ends a prompt that is typed."""

    sample_input_file: str | None = None
    """File of prompts, one per line. Also `-i`."""

    sample_output_file: str | None = "samples.txt"
    """File for the samples, one JSON object per line. Also `-o`."""

    num_samples: PositiveInt = 1
    """Samples per prompt, or in all without prompts."""

    recompute: bool = False
    """true computes the whole text again for each token; false keeps keys and values."""

    precompute_model_name: Annotated[str | None, Refused("not supported yet: take it out")] = None
    """Model whose outputs `text_gen_type: precompute` writes down."""

    eval_tasks: Annotated[
        tuple[str, ...] | None,
        Refused(
            "benchmarks are not supported yet: eval.py measures loss, perplexity and bits per byte"
        ),
    ] = None
    """Benchmarks for `eval.py`."""

    eval_results_prefix: Annotated[str, Ignored("has a meaning with eval_tasks only")] = ""
    """Beginning of the names of the files with their results."""
