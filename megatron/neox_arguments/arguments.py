"""The configuration: read, checked, frozen.

args = NeoXArgs.from_ymls(["configs/125M.yml", "configs/local_setup.yml"])
args.model.hidden_size     # inside the project: the section that is needed
args.hidden_size           # in scripts: any key, flat
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from megatron.errors import ConfigError
from megatron.neox_arguments import sections
from megatron.neox_arguments.batch_sizes import (
    BatchMismatch,
    BatchSizes,
    data_parallel_size,
    solve_batch,
)
from megatron.neox_arguments.checking import Checked, check_values
from megatron.neox_arguments.deepspeed_json import deepspeed_config
from megatron.neox_arguments.files import ConfigFile, read_files
from megatron.neox_arguments.merging import (
    Merged,
    apply_overrides,
    document_from,
    merge,
    nearest_place,
)
from megatron.neox_arguments.problems import Place, Problems, closest, shown
from megatron.neox_arguments.registry import FIELDS, SECTIONS
from megatron.neox_arguments.rules import REQUIRED, check_rules
from megatron.neox_arguments.shorthands import complete_groups
from megatron.neox_arguments.values import FrozenDict, thaw
from megatron.neox_arguments.yaml_source import KeyPath

_Args = TypeVar("_Args", bound="NeoXArgs")


@dataclass(frozen=True)
class NeoXArgs(sections.Sections):
    """A checked configuration. Nothing in it changes; what changes while running lives elsewhere.

    Attributes:
        files: the files it was read from, with their texts.
        notes: what a run should say once: ignored keys, values that stand for others.
        expected: values that only a run knows (``world_size`` ...), as the files expect them.
        overrides: the ``key=value`` texts that were put over the files.
        places: where each value, or each part of one, was written.
    """

    files: tuple[ConfigFile, ...] = ()
    notes: tuple[str, ...] = ()
    expected: Mapping[str, Any] = field(default_factory=FrozenDict)
    overrides: tuple[str, ...] = ()
    places: Mapping[KeyPath, Place] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_ymls(
        cls: type[_Args],
        paths: Sequence[str | Path],
        overrides: Iterable[str] = (),
        deepspeed_config: str | Path | None = None,
        world_size: int | None = None,
        conf_dir: str | Path | None = None,
        may_be_a_part: bool = False,
    ) -> _Args:
        """Read, merge and check configuration files.

        Args:
            paths: YAML or JSON files; ``.yml`` may be left out.
            overrides: ``key=value`` texts, dotted for nested keys.
            deepspeed_config: one more file, in DeepSpeed's own form; keys with the same value as in
                the others are allowed.
            world_size: number of ranks; with it the layout and the batch are checked too.
            conf_dir: folder of the files in ``paths`` that are not there as they are named.
            may_be_a_part: files that hold no model at all are fine: others stand beside them later.

        Raises:
            ConfigError: every problem there is, with file and line, in one message.
        """
        if not paths and deepspeed_config is None:
            raise ConfigError(
                "no configuration: name one or more files, such as configs/125M.yml configs/local_setup.yml",
                everywhere=True,
            )
        problems = Problems()
        files, documents = read_files(paths, conf_dir, problems)
        extra = (
            read_files([deepspeed_config], None, problems)
            if deepspeed_config is not None
            else ([], [])
        )
        overrides = tuple(overrides)
        merged = merge(documents, extra[1][0] if extra[1] else None, problems)
        apply_overrides(merged, overrides, problems)
        merged.is_a_part = may_be_a_part and not any(key in merged.values for key in REQUIRED)
        return cls._checked(merged, problems, world_size, (*files, *extra[0]), overrides)

    @classmethod
    def from_dict(
        cls: type[_Args],
        mapping: Mapping[str, Any],
        world_size: int | None = None,
        overrides: Iterable[str] = (),
    ) -> _Args:
        """Check a configuration that is given as flat keys with Python values.

        Raises:
            ConfigError: every problem there is, in one message.
        """
        problems = Problems()
        overrides = tuple(overrides)
        merged = merge([document_from(mapping, problems)], None, problems)
        apply_overrides(merged, overrides, problems)
        return cls._checked(merged, problems, world_size, (), overrides)

    @classmethod
    def _checked(
        cls: type[_Args],
        merged: Merged,
        problems: Problems,
        world_size: int | None,
        files: tuple[ConfigFile, ...],
        overrides: tuple[str, ...],
    ) -> _Args:
        if problems and not merged.values:
            problems.raise_if_any()  # nothing could be read: everything else would be missing
        checked = check_values(merged, problems)
        args = cls(
            **_build_sections(checked),
            files=files,
            notes=tuple(checked.notes),
            expected=FrozenDict(checked.runtime),
            overrides=overrides,
            places=dict(merged.places),
        )
        notes = check_rules(args, merged, problems, world_size)
        problems.raise_if_any()
        return dataclasses.replace(args, notes=(*args.notes, *notes))

    # Flat reading, for scripts.

    def __getattr__(self, name: str) -> Any:
        # Called only for what is no attribute. Dunder names are asked for by pickle and copy.
        spec = None if name.startswith("__") else FIELDS.get(name)
        if spec is not None:
            return getattr(getattr(self, spec.section), name)
        meant = closest(name, [*FIELDS, *SECTIONS])
        hint = f"; did you mean {meant}?" if meant else ""
        raise AttributeError(f"the configuration has no key {name}{hint}")

    def flat(self) -> dict[str, Any]:
        """All fields that work, by key, in plain JSON-able values; reading them again gives the same."""
        values = {
            key: thaw(getattr(getattr(self, spec.section), key))
            for key, spec in FIELDS.items()
            if spec.state == "works"
        }
        complete_groups(values)
        return values

    def hash(self) -> str:
        """A short fingerprint of :meth:`flat`: equal on every host where the same run is asked for."""
        text = json.dumps(self.flat(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def place(self, path: KeyPath) -> Place | None:
        """Where the value at ``path``, or the nearest thing around it, was written; None for a default."""
        return nearest_place(self.places, path)

    # What depends on the world.

    def batch_sizes(self, world_size: int) -> BatchSizes:
        """The batch of one step on ``world_size`` ranks.

        Raises:
            ConfigError: layout, batch keys and world do not fit, with the equation.
        """
        try:
            return solve_batch(self.batch, data_parallel_size(self.parallelism, world_size))
        except BatchMismatch as mismatch:
            raise ConfigError(f"{mismatch.key}: {mismatch}", everywhere=True) from None

    def deepspeed_config(self, world_size: int) -> dict[str, Any]:
        """The configuration that DeepSpeed gets; see :mod:`megatron.neox_arguments.deepspeed_json`."""
        return deepspeed_config(self, world_size)

    # What only a run knows.

    def check_runtime(self, **found: Any) -> None:
        """Compare what a run found (``world_size=4, padded_vocab_size=50304``) with what the files say.

        Raises:
            ConfigError: a file expects another value.
        """
        problems = Problems()
        for key, value in found.items():
            wanted = self.expected.get(key)
            if wanted is not None and wanted != value:
                problems.add(
                    key, f"the configuration says {shown(wanted)}, this run has {shown(value)}"
                )
        problems.raise_if_any()

    def require(self, *keys: str, purpose: str) -> None:
        """Insist on keys that are optional in general: ``args.require("data_path", purpose="training")``.

        Of keys with a bar between them, such as ``train_iters|train_epochs``, one has to be given.

        Raises:
            ConfigError: some have no value.
        """
        missing = [
            key.replace("|", " or ")
            for key in keys
            if all(getattr(self, name) is None for name in key.split("|"))
        ]
        if missing:
            where = f" (read: {', '.join(file.path for file in self.files)})" if self.files else ""
            raise ConfigError(
                f"{purpose} needs {', '.join(missing)}: not given{where}", everywhere=True
            )


def _build_sections(checked: Checked) -> dict[str, Any]:
    by_section: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for key, value in checked.values.items():
        by_section[FIELDS[key].section][key] = value
    return {name: cls(**by_section[name]) for name, cls in SECTIONS.items()}
