"""A progress bar on standard error, for people: nothing is shown where that is no terminal."""

from __future__ import annotations

import time

from tqdm import tqdm

from megatron.preprocessing.encoding import EncodedChunk
from megatron.preprocessing.tally import Tally


class Progress:
    """Counts what is done, and shows it.

    The bar runs over documents where their number is known, else over the bytes of the input files.

    Args:
        total_bytes: size of all input files on disk.
        num_docs: documents to come, if known. Nothing but the bar depends on it.
        interval: documents between two looks of the bar.
    """

    def __init__(self, total_bytes: int, num_docs: int | None, interval: int) -> None:
        self._by_documents = num_docs is not None
        self._bar = tqdm(
            total=total_bytes if num_docs is None else num_docs,
            bar_format="{percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}",
            disable=None,  # when the stream is no terminal
            dynamic_ncols=True,
        )
        self._interval = interval
        self._started = time.monotonic()
        self._shown = 0  # documents when the bar last moved
        self._pending = 0  # units that the bar has not seen yet
        self.documents = 0
        self.tokens = 0
        self.text_bytes = 0

    def resume(self, done: Tally) -> None:
        """Show as done what an earlier run did; its time is not known."""
        if self._bar.disable:
            return
        units = done.documents[0] + done.empty[0] if self._by_documents else done.stored_bytes
        self._bar.initial += units  # what the rate and the time that is left leave out
        self._bar.update(units)

    def add(self, chunk: EncodedChunk) -> None:
        """Count a finished chunk. A document is counted once, however many keys it has."""
        first = chunk.keys[0]
        documents = len(first.lengths) + first.empty
        self.documents += documents
        self.tokens += sum(key.tokens.size for key in chunk.keys)
        self.text_bytes += chunk.text_bytes
        self._pending += documents if self._by_documents else chunk.stored_bytes
        if self.documents - self._shown >= self._interval:
            self._show()

    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._started

    def close(self, *, finished: bool) -> None:
        """Take the bar away, full if the work is done."""
        if finished:
            self._show()
        self._bar.close()

    def _show(self) -> None:
        seconds = max(self.seconds(), 1e-9)
        self._bar.set_postfix_str(
            f"{self.documents:,} documents, {self.text_bytes / seconds / 1e6:.1f} MB/s, "
            f"{self.tokens / seconds:,.0f} tokens/s",
            refresh=False,
        )
        self._bar.update(self._pending)
        self._shown, self._pending = self.documents, 0
