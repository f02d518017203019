"""Models in and out: other projects' folders ⇄ checkpoints, one engine and one table of families."""

from megatron.conversion.exporting import Export, Wishes, export_checkpoint
from megatron.conversion.importing import Import, Layout, import_folder, import_model
from megatron.conversion.sources import Source, raw_source

__all__ = [
    "Export",
    "Import",
    "Layout",
    "Source",
    "Wishes",
    "export_checkpoint",
    "import_folder",
    "import_model",
    "raw_source",
]
