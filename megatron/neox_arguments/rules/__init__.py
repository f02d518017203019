"""What must hold between the fields of a configuration."""

from megatron.neox_arguments.rules.check import check_rules
from megatron.neox_arguments.rules.rule import REQUIRED

__all__ = ["REQUIRED", "check_rules"]
