"""What needs torch, in a process of its own: devices, their speed, and one all-reduce among all hosts.

A driver or a collective that hangs then hangs nothing else. It says what it found in lines of JSON on its
standard output, and reads on its input where to meet.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from megatron.runtime.parent import end_with_parent

REDUCED_BYTES: Final = 16 * 2**20
REDUCE_PATIENCE: Final = 12.0  # seconds for all to meet and reduce
_MATRIX_SECONDS: Final = 0.3


class TorchProcess:
    """The other end of it, in the probe."""

    def __init__(self) -> None:
        environment = {
            key: value
            for key, value in os.environ.items()
            # It meets at another place than the run's.
            if key not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
            and not key.startswith("TORCHELASTIC_")
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._words: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._listen_to_words, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # libraries may say something too
                self._lines.put(line)
        self._lines.put(None)

    def _listen_to_words(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._words = [*self._words[-20:], line.strip()]

    def ask(self, question: dict[str, Any] | None, patience: float) -> Any:
        """Send a question, if there is one, and wait for what it answers.

        Raises:
            RuntimeError: it has ended, or does not answer within ``patience`` seconds.
        """
        if question is not None:
            assert self._process.stdin is not None
            with suppress(OSError):  # it has ended: its last words say why
                self._process.stdin.write(json.dumps(question) + "\n")
                self._process.stdin.flush()
        try:
            line = self._lines.get(timeout=patience)
        except queue.Empty:
            raise RuntimeError(f"no answer within {patience:.0f} s") from None
        if line is None:
            self._lines.put(None)
            time.sleep(0.2)  # its last words come by another pipe
            words = [word for word in self._words if word]
            raise RuntimeError(words[-1] if words else "it ended without a word")
        return json.loads(line)

    def end(self) -> None:
        """Kill it, whatever it does."""
        self._process.kill()


def main() -> None:
    """Tell about the devices, then reduce when asked to."""
    from megatron.runtime import device  # noqa: PLC0415 - the probe imports this file without torch

    _say(
        {
            "devices": [
                {"name": name, "total": total, "free": free}
                for name, total, free in device.device_memory()
            ],
            "flops": _flops(),
            "backend": device.default_backend(),
        }
    )
    for line in sys.stdin:
        _say(_reduce(**json.loads(line)))


def _flops() -> float:
    """Floating-point operations a second of matrix products: bf16 on a GPU, fp32 on a CPU."""
    import torch  # noqa: PLC0415

    from megatron.runtime import device  # noqa: PLC0415

    place = device.local_device(0)
    size, kind = (4096, torch.bfloat16) if place.type != "cpu" else (512, torch.float32)
    matrix = torch.ones(size, size, dtype=kind, device=place)
    (matrix @ matrix).sum().item()  # the first one loads libraries
    done, start = 0, time.monotonic()
    while time.monotonic() - start < _MATRIX_SECONDS:
        (matrix @ matrix)[0, 0].item()  # waits for the device
        done += 1
    return done * 2 * size**3 / (time.monotonic() - start)


def _reduce(
    *, address: str, port: int, rank: int, size: int, backend: str, own_address: str
) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from megatron.runtime import device  # noqa: PLC0415
    from megatron.runtime.interface import choose_interface  # noqa: PLC0415

    choose_interface(own_address)  # as a run does
    dist.init_process_group(
        backend,
        init_method=f"tcp://{address}:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=REDUCE_PATIENCE),
    )
    place = device.local_device(0) if backend == "nccl" else torch.device("cpu")
    numbers = torch.ones(REDUCED_BYTES // 4, device=place)
    dist.all_reduce(numbers)  # connects
    numbers[0].item()
    start = time.monotonic()
    dist.all_reduce(numbers)
    numbers[0].item()
    return {
        "nbytes": REDUCED_BYTES,
        "seconds": time.monotonic() - start,
        "backend": backend,
    }


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
