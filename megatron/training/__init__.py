"""A training run: set-up, steps, evaluation, when to save, when to stop."""
