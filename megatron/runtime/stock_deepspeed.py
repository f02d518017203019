"""Stock DeepSpeed, imported in the one order in which it starts quickly and quietly.

Importing this module is its work, the only such module of the project: DeepSpeed chooses its
accelerator and warns about it while it is imported, so the choice must be made before. Everything
that needs DeepSpeed says ``from megatron.runtime.stock_deepspeed import deepspeed``.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from typing import Any, TypeAlias
from unittest import mock

from megatron.runtime.device import device_kind

# Unset, DeepSpeed probes for every accelerator it knows and prints what it found.
os.environ.setdefault("DS_ACCELERATOR", device_kind())

# torch renamed its tensor collectives; DeepSpeed still calls the old names.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
warnings.filterwarnings("ignore", category=FutureWarning, module=r"deepspeed")

import deepspeed  # noqa: E402
import deepspeed.accelerator  # noqa: E402
import deepspeed.git_version_info  # noqa: E402
import deepspeed.ops  # noqa: E402
import deepspeed.runtime.compiler  # noqa: E402

# With this op marked compatible, init_distributed compiles C++ for a minute on first use, and
# fails without a compiler. Only inference_all_reduce, which nothing here calls, would use it.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

# ZeRO imports Muon whatever the optimizer, and Muon's module decorates three functions with
# torch.compile, which imports all of inductor: a second or more of every start. Imported here with a
# decorator that does nothing, it costs no time; Muon itself would only run uncompiled.
with mock.patch.object(
    deepspeed.runtime.compiler, "compile", return_value=lambda function: function
):
    importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")

if device_kind() == "cpu":
    # DeepSpeed refuses fp16 where the CPU has no instructions for it; PyTorch computes it all the same.
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True

logging.getLogger("DeepSpeed").setLevel(logging.ERROR)

# deepspeed.DeepSpeedEngine, which has no types.
Engine: TypeAlias = Any


def is_prebuilt(op: str) -> bool:
    """Whether DeepSpeed was installed with its compiled ``op``; others it compiles when they are used."""
    return bool(deepspeed.git_version_info.installed_ops.get(op, False))


__all__ = ["Engine", "deepspeed", "is_prebuilt"]
