"""What every rank of a test needs, imported once in the fork server: ranks then start at once."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch._dynamo  # noqa: F401

import megatron.runtime.stock_deepspeed  # noqa: F401
