"""A start: from one command to the processes of a run, and from their ends to one exit status.

Nothing here imports torch before the configuration is checked; :mod:`megatron.launch.local` does then.
"""
