"""From token files on disk to batches: reading, splitting, ordering, sharing and loading.

Data never sees the model: what leaves this room is a tensor of token ids and a mask.
"""
