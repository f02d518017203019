"""What every test process needs, imported once in the fork server so that a rank starts in tenths of a second."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch._dynamo

import megatron.runtime.stock_deepspeed  # noqa: F401
