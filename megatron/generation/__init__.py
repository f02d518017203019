"""Text from a trained model: drawing tokens, the loop around the model, prompts and files."""

from megatron.generation.engine import Sample, generate
from megatron.generation.run import run_generation

__all__ = ["Sample", "generate", "run_generation"]
