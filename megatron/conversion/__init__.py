"""Models in and out: Hugging Face folders ⇄ checkpoints, one engine and one table of families."""

from megatron.conversion.exporting import Export, Wishes, export_checkpoint
from megatron.conversion.importing import Import, Layout, import_folder

__all__ = ["Export", "Import", "Layout", "Wishes", "export_checkpoint", "import_folder"]
