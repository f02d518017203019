"""Metrics as TensorBoard's event files."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron.errors import NeoXError


class TensorBoardSink:
    """Writes every metric as a scalar of its name at its iteration.

    The event file is opened by the first row, so that a resumed run can first tell TensorBoard to
    hide what an earlier one had logged beyond the checkpoint.

    Raises:
        NeoXError: the package is not there, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None
        self._purge_step: int | None = None
        try:
            # Costs a second and an optional package: only those who ask for it pay.
            self._module = importlib.import_module("torch.utils.tensorboard")
            folder.mkdir(parents=True, exist_ok=True)
        except ImportError as error:
            raise NeoXError(
                f"tensorboard_dir: {folder}\n  found: {error}\n"
                "  to do: pip install tensorboard, or leave tensorboard_dir out"
            ) from error
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, metrics: Mapping[str, float | int | None]) -> None:
        """Log one row."""
        try:
            if self._writer is None:
                self._writer = self._module.SummaryWriter(
                    str(self.folder), purge_step=self._purge_step
                )
            for name, value in metrics.items():
                if name != "iteration" and value is not None:
                    self._writer.add_scalar(name, value, metrics["iteration"])
            self._writer.flush()
        except OSError as error:
            raise self._unwritable(error) from error

    def cut_after(self, iteration: int) -> None:
        """Have TensorBoard hide earlier events beyond ``iteration``. Before the first row only."""
        assert self._writer is None, "cut_after comes before the first row"
        self._purge_step = iteration + 1

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _unwritable(self, error: OSError) -> NeoXError:
        return NeoXError(
            f"tensorboard_dir: {self.folder} cannot be written: {error.strerror or error}\n"
            "  to do: make room and allow writing there, or choose another folder"
        )
