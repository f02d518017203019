"""A YAML-driven trainer for large autoregressive language models on torch and DeepSpeed."""

__version__ = "0.1.0"
