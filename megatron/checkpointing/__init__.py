"""States in and out of folders: checkpoints that are whole, found again, and loaded exactly."""

from megatron.checkpointing.find import find_checkpoint
from megatron.checkpointing.load import Reshaping, load_checkpoint
from megatron.checkpointing.looking import CheckpointInfo
from megatron.checkpointing.manifest import EngineFacts, Manifest
from megatron.checkpointing.save import save_checkpoint
from megatron.checkpointing.save_folder import check_save_folder, claimed_save_folder
from megatron.checkpointing.weights import load_weights, read_weights, refresh_master_weights

__all__ = [
    "CheckpointInfo",
    "EngineFacts",
    "Manifest",
    "Reshaping",
    "check_save_folder",
    "claimed_save_folder",
    "find_checkpoint",
    "load_checkpoint",
    "load_weights",
    "read_weights",
    "refresh_master_weights",
    "save_checkpoint",
]
