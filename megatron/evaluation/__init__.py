"""A score: how well a checkpoint predicts a text."""

from megatron.evaluation.perplexity import Score, score_documents

__all__ = ["Score", "score_documents"]
