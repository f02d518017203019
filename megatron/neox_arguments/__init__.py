"""The configuration: files of flat keys become one checked, frozen :class:`NeoXArgs`.

Imports neither torch nor DeepSpeed, so that a launcher can check before it starts anything.
"""

from megatron.neox_arguments.arguments import NeoXArgs
from megatron.neox_arguments.batch_sizes import BatchSizes
from megatron.neox_arguments.files import ConfigFile

__all__ = ["BatchSizes", "ConfigFile", "NeoXArgs"]
