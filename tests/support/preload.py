"""What ranks of tests need, imported once in the fork server: ranks then start at once.

Without the second half each rank would import it anew, which takes it 0.6 s of a core: longer than what most
ranks do.
"""

import gc
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: F401
import torch
import torch._dynamo  # noqa: F401

import megatron.evaluation.run
import megatron.generation.run
import megatron.runtime.stock_deepspeed
import megatron.training.run  # noqa: F401

# Collections of a rank's own garbage would otherwise touch, and so copy, all that it shares with the server.
gc.freeze()
