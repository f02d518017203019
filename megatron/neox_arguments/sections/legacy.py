"""Keys that stand in GPT-NeoX's files and mean nothing to a run here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from megatron.neox_arguments.typed import Ignored, NonNegativeFloat, PositiveInt, Refused

_UNUSED = Ignored("GPT-NeoX itself makes no use of it")
_LAUNCHER_KNOWS = Ignored("the launcher knows it")


@dataclass(frozen=True)
class LegacyArgs:
    """Left over from Megatron, or written by GPT-NeoX itself."""

    lazy_mpu_init: Annotated[bool, _UNUSED] = False
    """Whether process groups are set up by other code."""

    onnx_safe: Annotated[bool, _UNUSED] = False
    """Whether the model keeps to what ONNX can express."""

    short_seq_prob: Annotated[NonNegativeFloat, _UNUSED] = 0.1
    """Share of short samples, for BERT."""

    deepscale: Annotated[bool, _UNUSED] = False
    """DeepSpeed's former name."""

    deepscale_config: Annotated[str | None, _UNUSED] = None
    """DeepSpeed's former name for its configuration file."""

    user_script: Annotated[str | None, _LAUNCHER_KNOWS] = None
    """The program that is started."""

    global_num_gpus: Annotated[PositiveInt | None, _LAUNCHER_KNOWS] = None
    """Processes of the run."""

    config_files: Annotated[
        dict[str, Any] | None, Ignored("a checkpoint keeps the files themselves")
    ] = None
    """Configuration files by name, as GPT-NeoX stores them in its own configurations."""

    git_hash: Annotated[str | None, Ignored("a run says for itself what it runs")] = None
    """Version of the code, as GPT-NeoX writes it into its own configurations."""

    adlr_autoresume: Annotated[
        bool, Refused("is of one cluster: a run that gets SIGTERM saves, and resumes with `load`")
    ] = False
    """Whether a cluster's own service ends and restarts the run."""

    adlr_autoresume_interval: Annotated[
        PositiveInt, Ignored("has a meaning with adlr_autoresume only")
    ] = 1000
    """Steps between questions to it."""
