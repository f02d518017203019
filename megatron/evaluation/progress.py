"""What a score says while it is being made: a line now and then, as a training run does."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from megatron.data.step_batch import StepBatch
from megatron.logging import get_logger
from megatron.monitor.units import count_text, duration_text

log = get_logger(__name__)

# Seconds between two lines.
PACE_S = 10.0


def with_progress(
    batches: Iterable[StepBatch],
    *,
    num_windows: int,
    seq_length: int,
    ranks: int,
    pace_s: float = PACE_S,
) -> Iterator[StepBatch]:
    """``batches`` as they are, with a log line for those that are done whenever ``pace_s`` have passed.

    Args:
        batches: this rank's windows.
        num_windows: of all ranks together, each of ``seq_length`` tokens.
        seq_length: tokens of one.
        ranks: that share the windows out among themselves.
        pace_s: seconds.
    """
    started = last_line = time.monotonic()
    done = 0
    for batch in batches:
        now = time.monotonic()
        if done and now - last_line >= pace_s:
            last_line = now
            log.info("%s", _line(done, num_windows, seq_length, now - started))
        yield batch
        done = min(num_windows, done + batch.num_samples * ranks)


def _line(done: int, windows: int, seq_length: int, seconds: float) -> str:
    """Such as ``window  120/1,431 | 12.3k tok/s | ETA 1m50s``."""
    a_window = max(seconds, 1e-9) / done
    return (
        f"window {done:>{len(f'{windows:,}')},}/{windows:,} | {count_text(seq_length / a_window)} tok/s"
        f" | ETA {duration_text((windows - done) * a_window)}"
    )
