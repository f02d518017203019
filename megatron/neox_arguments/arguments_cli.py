"""The configuration on the command line of `train.py`, `generate.py`, `eval.py` and the tools.

train.py configs/125M.yml configs/local_setup.yml --set train_iters=10
train.py -d configs 125M local_setup
train.py --deepspeed_config configs/deepspeed_config.json --config-file configs/125M.yml
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import NoReturn

from megatron.errors import ConfigError
from megatron.neox_arguments.arguments import NeoXArgs
from megatron.neox_arguments.known_keys import ALIASES
from megatron.neox_arguments.payload import check_payload
from megatron.neox_arguments.yaml_source import canonical

# Options with a name of their own that set one key, as in GPT-NeoX.
KEY_OPTIONS: dict[str, tuple[str, ...]] = {
    "iteration": ("--iteration",),
    "sample_input_file": ("-i", "--sample_input_file"),
    "sample_output_file": ("-o", "--sample_output_file"),
    "eval_tasks": ("--eval_tasks",),
}


class RankParser(argparse.ArgumentParser):
    """The parser of a program that runs as many ranks: a mistake in its options is said once."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            f"command line: {message}\n  to do: see {self.prog} --help", everywhere=True
        )


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a configuration; read them back with :func:`args_from_cli`.

    Options may not be abbreviated after this: DeepSpeed's launcher adds some of its own, and a short
    form that means one thing today would mean another tomorrow.
    """
    parser.allow_abbrev = False
    group = parser.add_argument_group("configuration")
    group.add_argument("config", nargs="*", help="configuration files; .yml may be left out")
    group.add_argument(
        "--config-file",
        "--config_file",
        "--conf_file",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="configuration files, the same as without the option",
    )
    group.add_argument("-d", "--conf_dir", metavar="DIR", help="folder of the configuration files")
    group.add_argument(
        "--deepspeed_config", metavar="FILE", help="one more file, in DeepSpeed's own form (JSON)"
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="put a value over the files'; dotted for nested keys (optimizer.params.lr=1e-4)",
    )
    group.add_argument(
        "--iteration", metavar="N", help="load the checkpoint of this step, not the latest"
    )
    group.add_argument(
        "-i", "--sample_input_file", metavar="FILE", help="prompts, one per line (generate.py)"
    )
    group.add_argument("-o", "--sample_output_file", metavar="FILE", help="samples (generate.py)")
    group.add_argument("--eval_tasks", nargs="+", metavar="TASK", help="benchmarks (eval.py)")
    # DeepSpeed's launcher adds these; the ranks' environment says the same.
    group.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    group.add_argument("--deepspeed", action="store_true", help=argparse.SUPPRESS)


def overrides_from_cli(parsed: argparse.Namespace) -> tuple[str, ...]:
    """All ``key=value`` texts that a command line means, options with names of their own included."""
    overrides = list(parsed.overrides)
    given = {_canonical_key(text) for text in overrides}
    for key in KEY_OPTIONS:
        value = getattr(parsed, key)
        if value is None:
            continue
        if key in given:
            raise ConfigError(f"command line: {key} is given twice: keep one", everywhere=True)
        overrides.append(f"{key}={_as_yaml(value)}")
    return tuple(overrides)


def args_from_cli(parsed: argparse.Namespace, world_size: int | None = None) -> NeoXArgs:
    """The configuration that a command line names.

    Args:
        parsed: what a parser with :func:`add_config_arguments` returned.
        world_size: number of ranks; None checks neither layout nor batch.

    Raises:
        ConfigError: every problem there is, or a launcher has checked another configuration.
    """
    args = NeoXArgs.from_ymls(
        [*parsed.config, *parsed.config_file],
        overrides=overrides_from_cli(parsed),
        deepspeed_config=parsed.deepspeed_config,
        world_size=world_size,
        conf_dir=parsed.conf_dir,
    )
    check_payload(args)
    return args


def _canonical_key(override: str) -> str:
    key = canonical(override.partition("=")[0])
    return ALIASES.get(key, key)


def _as_yaml(value: str | Iterable[str]) -> str:
    return value if isinstance(value, str) else "[" + ", ".join(f'"{item}"' for item in value) + "]"
