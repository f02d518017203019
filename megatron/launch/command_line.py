"""What `./deepy.py` is told: which script, which configuration, and what is the script's own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.errors import LaunchError
from megatron.neox_arguments.arguments_cli import add_config_arguments, overrides_from_cli
from megatron.neox_arguments.files import SUFFIXES, resolve
from megatron.neox_arguments.problems import closest
from megatron.neox_arguments.yaml_source import canonical

USAGE = """\
./deepy.py [launcher options] script.py [-d DIR] config... [--set KEY=VALUE] [own options]

  ./deepy.py train.py -d configs 125M local_setup
  ./deepy.py --num_gpus 2 train.py configs/125M.yml configs/local_setup.yml --set train_iters=10
  ./deepy.py --check [script.py] configs/125M.yml configs/local_setup.yml
  ./deepy.py --hostfile hosts --dry-run train.py configs/125M.yml configs/local_setup.yml
  ./deepy.py doctor [--json] configs/125M.yml configs/local_setup.yml
  ./deepy.py --deepspeed_json configs/125M.yml configs/local_setup.yml
  ./deepy.py generate.py configs/125M.yml configs/local_setup.yml configs/text_generation.yml -i prompts.txt

Own options are the script's: the first one that deepy.py does not know, and all that follow it, reach the
script as they stand. Launcher options put values over the configuration's keys of the same names."""

# What a configuration is checked for where no script is named.
DEFAULT_SCRIPT = "train.py"
# The programs that take a configuration.
SCRIPTS = (DEFAULT_SCRIPT, "generate.py", "eval.py")
# Each is a key of the configuration too.
LAUNCHER_OPTIONS = {
    "hostfile": "file of hosts, one 'name slots=N' per line",
    "include": "hosts and devices to use",
    "exclude": "hosts and devices to leave out",
    "num_nodes": "number of hosts",
    "num_gpus": "processes per host; on a machine without GPUs, processes on the CPU",
    "master_port": "port at which the ranks meet; a free one is found by default",
    "master_addr": "address at which the ranks meet",
    "launcher": "what starts processes on other hosts: pdsh, openmpi, mpich, impi, mvapich, slurm",
    "launcher_args": "more arguments for the launcher",
    "account": "account that a job of Slurm's is charged to",
    "comment": "comment on a job that goes to Slurm",
}
# The same, for keys that are true or false.
SWITCHES = {
    "force_multi": "start one host through the launcher too",
    "no_ssh_check": "SSH may ask for a password, and take its time",
}
# Options that check, for which no script has to be named.
_CHECKS = ("check", "deepspeed_json")
# Options that name configuration files.
_FILE_OPTIONS = frozenset(
    {"-d", "--conf_dir", "--config-file", "--config_file", "--conf_file", "--deepspeed_config"}
)


@dataclass(frozen=True)
class Command:
    """A parsed command line of `deepy.py`.

    Attributes:
        script: the program that each rank runs.
        configs: configuration files as they were named.
        conf_dir: folder of those files, if given.
        deepspeed_config: file in DeepSpeed's own form, if given.
        overrides: ``key=value`` texts, those of the launcher options included.
        own: the script's own options.
        check_only: check and describe, start nothing.
        names_script: a script is named; without one a configuration is checked, not a start.
        deepspeed_json: show the configuration that DeepSpeed gets, and start nothing.
        dry_run: show what would be started where, and start nothing.
    """

    script: str
    configs: tuple[str, ...]
    conf_dir: str | None
    deepspeed_config: str | None
    overrides: tuple[str, ...]
    own: tuple[str, ...]
    check_only: bool
    names_script: bool = True
    deepspeed_json: bool = False
    dry_run: bool = False

    def script_arguments(
        self, config_files: Sequence[str], deepspeed_config: str | None
    ) -> list[str]:
        """The arguments of each rank: the files that were found, the overrides, the script's own."""
        arguments = ["--config-file", *config_files] if config_files else []
        if deepspeed_config is not None:
            arguments += ["--deepspeed_config", deepspeed_config]
        for override in self.overrides:
            arguments += ["--set", override]
        return [*arguments, *self.own]


def parse_command(argv: Sequence[str]) -> Command:
    """Read `deepy.py`'s arguments.

    Raises:
        LaunchError: no script is named, it is a configuration file, or an option is unknown, or stands where
            it would not be seen.
        SystemExit: argparse's own, for ``--help`` and options without their value.
    """
    launcher, rest = _launcher_parser().parse_known_args(_before_script(argv))
    if rest:
        raise LaunchError(
            f"command line: unknown option {rest[0]} before the script; see ./deepy.py --help"
        )
    after = list(argv[len(_before_script(argv)) :])
    check_only = launcher.check or launcher.deepspeed_json
    names_script = bool(after) and Path(after[0]).suffix == ".py"
    if names_script or not check_only:
        script, after = _take_script(after)
    else:
        script = DEFAULT_SCRIPT
    parser = argparse.ArgumentParser(prog="deepy.py " + script, usage=USAGE)
    add_config_arguments(parser)
    known, own = _split_known(parser, after)
    if own and not names_script and check_only:
        raise LaunchError(f"command line: unknown option {own[0]}; see ./deepy.py --help")
    # Intermixed: configuration files may stand before and after options.
    parsed = parser.parse_intermixed_args(known)
    if not names_script and parsed.config:
        _refuse_half_a_script(parsed.config[0], parsed.conf_dir)
    options = [
        f"{key}={getattr(launcher, key)}" for key in LAUNCHER_OPTIONS if getattr(launcher, key)
    ]
    options += [f"{key}=true" for key in SWITCHES if getattr(launcher, key)]
    return Command(
        script=script,
        configs=(*parsed.config, *parsed.config_file),
        conf_dir=parsed.conf_dir,
        deepspeed_config=parsed.deepspeed_config,
        overrides=(*options, *overrides_from_cli(parsed)),
        own=tuple(own),
        check_only=check_only,
        names_script=names_script,
        deepspeed_json=launcher.deepspeed_json,
        dry_run=launcher.dry_run,
    )


def _take_script(after: list[str]) -> tuple[str, list[str]]:
    """The script, and what follows it."""
    if not after:
        raise LaunchError(
            "command line: no script is named: ./deepy.py train.py configs/125M.yml ..."
        )
    if Path(after[0]).suffix in SUFFIXES:
        raise LaunchError(f"command line: expected a script such as train.py, found {after[0]}")
    return after[0], after[1:]


def meant_script(name: str) -> str | None:
    """The script of ours that a mistyped ``name`` most probably means, if any is near enough."""
    stem = closest(Path(name).stem, [Path(script).stem for script in SCRIPTS])
    return f"{stem}.py" if stem else None


def _refuse_half_a_script(word: str, conf_dir: str | None) -> None:
    """A check takes its first word for a configuration unless it ends as a script does."""
    if f"{word}.py" in SCRIPTS and resolve(word, conf_dir) is None:
        raise LaunchError(
            f"command line: {word} is no configuration file; did you mean the script {word}.py?"
        )


def _launcher_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deepy.py", usage=USAGE, allow_abbrev=False)
    parser.add_argument(
        "--check", action="store_true", help="check and describe the configuration, start nothing"
    )
    switches = {
        "deepspeed_json": "show the configuration that DeepSpeed gets, start nothing",
        "dry-run": "show hosts, ranks, devices, command and environment, start nothing",
        **SWITCHES,
    }
    for name, text in switches.items():
        _add_in_both_spellings(parser, name, text, action="store_true")
    for key, text in LAUNCHER_OPTIONS.items():
        _add_in_both_spellings(parser, key, text, metavar="X")
    return parser


def _add_in_both_spellings(
    parser: argparse.ArgumentParser, name: str, text: str, **settings: Any
) -> None:
    """Add ``--name``, and in silence what it is with ``_`` for ``-`` or the other way round."""
    key = canonical(name)
    parser.add_argument(f"--{name}", dest=key, help=text, **settings)
    for other in {key, key.replace("_", "-")} - {name}:
        parser.add_argument(f"--{other}", dest=key, help=argparse.SUPPRESS, **settings)


def _before_script(argv: Sequence[str]) -> list[str]:
    """The launcher's own arguments: options with their values, up to the first word that is neither.

    Where an option has said to check, the configuration's options need no script before them."""
    index, checks = 0, False
    while index < len(argv) and argv[index].startswith("-"):
        name = argv[index].lstrip("-").replace("-", "_")
        is_launchers = name.partition("=")[0] in (*LAUNCHER_OPTIONS, *SWITCHES, *_CHECKS, "dry_run")
        if checks and not is_launchers:
            break  # no script is named, and the configuration's own options have begun
        checks = checks or name in _CHECKS
        index += 2 if name in LAUNCHER_OPTIONS else 1
    return list(argv[:index])


def _split_known(
    parser: argparse.ArgumentParser, arguments: list[str]
) -> tuple[list[str], list[str]]:
    """Cut the arguments before the first option that the configuration does not know."""
    known = {option for action in parser._actions for option in action.option_strings}
    for index, argument in enumerate(arguments):
        if argument == "--":
            return arguments[:index], arguments[index + 1 :]
        if argument.startswith("-") and len(argument) > 1 and _option(argument) not in known:
            _check_own(arguments[index:])
            return arguments[:index], arguments[index:]
    return arguments, []


def _option(argument: str) -> str:
    """The option's name in ``--set=x``, ``--set`` and ``-dconfigs``."""
    return argument.split("=", 1)[0] if argument.startswith("--") else argument[:2]


def _check_own(own: list[str]) -> None:
    """Refuse, among the script's own options, those that would have no effect on the start."""
    own = own[: own.index("--")] if "--" in own else own
    for argument, following in zip(own, [*own[1:], ""], strict=True):
        option = _option(argument)
        if option.startswith("--") and canonical(option[2:]) in {*LAUNCHER_OPTIONS, *SWITCHES}:
            raise LaunchError(
                f"command line: {option} is a launcher option: put it before the script"
            )
        _, equals, value = argument.partition("=")
        key = (value if equals else following).partition("=")[0]
        sets_the_start = option == "--set" and canonical(key) in {*LAUNCHER_OPTIONS, *SWITCHES}
        if sets_the_start or option in _FILE_OPTIONS:
            shown = f"--set {key}" if sets_the_start else option
            raise LaunchError(
                f"command line: {shown} stands after {_option(own[0])}, the script's own option, where it "
                "has no effect on the start: put it before that"
            )
