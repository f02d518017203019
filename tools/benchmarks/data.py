#!/usr/bin/env python
"""How fast text becomes tokens: `data.py [--megabytes 120] [--runs 3] [--tokenizer gpt2|20b]`.

On one corpus, the shipped text repeated, and in one run, MB/s of text as medians of:

- tools/datasets/preprocess_data.py as a user runs it, with 1 and 2 workers, from start to files;
- the bare tiktoken engine on 1 and 2 threads: texts in memory, ids thrown away;
- `tokenizers.encode_batch_fast` on all cores, likewise;
- a `multiprocessing.Pool` of 2 processes that call `encode(text).ids` of `tokenizers` and hand back
  lists, which are then packed and written: the way that this kind of tool usually goes.

All of them must give the same ids, which is checked.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from megatron.data.indexed_dataset import make_dataset  # noqa: E402
from megatron.tokenizer import Tokenizer, build_tokenizer  # noqa: E402

ASSETS = ROOT / "tests/assets"
TOKENIZERS = {
    "gpt2": (
        "GPT2BPETokenizer",
        str(ASSETS / "gpt2/vocab.json"),
        str(ASSETS / "gpt2/merges.txt"),
    ),
    "20b": ("HFTokenizer", str(ASSETS / "neox20b/20B_tokenizer.json"), None),
}
THREADS = 2

# The peers' workers keep their tokenizer here.
_peer: tokenizers.Tokenizer | None = None


def write_corpus(path: Path, megabytes: int) -> list[str]:
    """The shipped documents over and over; returns their texts."""
    rows = (ROOT / "tools/quickstart/corpus.jsonl").read_bytes().splitlines(keepends=True)
    repeats = -(-megabytes * 1_000_000 // sum(map(len, rows)))
    path.write_bytes(b"".join(rows) * repeats)
    return [json.loads(row)["text"] for row in rows] * repeats


def parts(texts: list[str]) -> list[list[str]]:
    """The texts in lists of about half a megabyte."""
    lists: list[list[str]] = [[]]
    size = 0
    for text in texts:
        lists[-1].append(text)
        size += len(text)
        if size > 500_000:
            lists.append([])
            size = 0
    return lists


def our_tool(corpus: Path, prefix: Path, kind: str, workers: int) -> Callable[[], int]:
    name, vocab, merges = TOKENIZERS[kind]
    command = [sys.executable, str(ROOT / "tools/datasets/preprocess_data.py")]
    command += ["--input", str(corpus), "--output-prefix", str(prefix), "--workers", str(workers)]
    command += ["--tokenizer-type", name, "--vocab-file", vocab]
    command += ["--merge-file", merges] if merges else []

    def run() -> int:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return make_dataset(f"{prefix}_text_document").num_tokens

    return run


def bare_engine(tokenizer: Tokenizer, lists: list[list[str]], threads: int) -> Callable[[], int]:
    def run() -> int:
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(lambda part: len(tokenizer.tokenize_packed(part).tokens), lists))

    return run


def bare_library(tokenizer: Tokenizer, lists: list[list[str]]) -> Callable[[], int]:
    return lambda: sum(len(ids) for part in lists for ids in tokenizer.tokenize_batch(part))


def _start_peer(kind: str) -> None:
    global _peer
    _, vocab, merges = TOKENIZERS[kind]
    if merges is None:
        _peer = tokenizers.Tokenizer.from_file(vocab)
    else:
        _peer = tokenizers.Tokenizer(models.BPE.from_file(vocab, merges))
        _peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


def _encode_as_peer(line: str) -> tuple[list[int], int]:
    assert _peer is not None
    return _peer.encode(json.loads(line)["text"]).ids, len(line)


def peers_way(corpus: Path, output: Path, kind: str) -> Callable[[], int]:
    def run() -> int:
        tokens = 0
        context = multiprocessing.get_context("spawn")
        with (
            open(corpus, encoding="utf-8", newline="\n") as rows,
            open(output, "wb") as file,
            context.Pool(THREADS, _start_peer, (kind,)) as pool,
        ):
            for ids, _ in pool.imap(_encode_as_peer, rows, 25):
                file.write(np.array(ids, dtype=np.uint16).tobytes())
                tokens += len(ids)
        return tokens

    return run


def same_ids(prefix: Path, peers: Path) -> bool:
    """Whether the tool and the library wrote the same tokens."""
    return Path(f"{prefix}_text_document.bin").read_bytes() == peers.read_bytes()


def measure(kind: str, megabytes: int, runs: int, folder: Path) -> None:
    corpus, prefix, peers = folder / "corpus.jsonl", folder / "ours", folder / "peers.bin"
    texts = write_corpus(corpus, megabytes)
    text_mb = corpus.stat().st_size / 1e6
    lists = parts(texts)
    tokenizer = build_tokenizer(*TOKENIZERS[kind])
    print(f"{kind}: {text_mb:.0f} MB, {len(texts):,} documents; bulk engine: {tokenizer.engine}")
    ways: dict[str, Callable[[], int]] = {
        "this tool, 1 worker": our_tool(corpus, prefix, kind, 1),
        "this tool, 2 workers": our_tool(corpus, prefix, kind, 2),
        "bare engine, 1 thread": bare_engine(tokenizer, lists, 1),
        "bare engine, 2 threads": bare_engine(tokenizer, lists, THREADS),
        "tokenizers, all cores": bare_library(tokenizer, lists),
        "the peers' way, 2 processes": peers_way(corpus, peers, kind),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    counts = set()
    for _ in range(runs):
        for name, way in ways.items():  # in turn, so that a busy moment of the machine hits all
            start = time.perf_counter()
            counts.add(way())
            seconds[name].append(time.perf_counter() - start)
    speed = {name: text_mb / statistics.median(taken) for name, taken in seconds.items()}
    for name, rate in speed.items():
        print(f"  {rate:6.2f} MB/s  {name}")
    ours = speed["this tool, 2 workers"]
    print(f"  {ours / speed['bare engine, 2 threads']:6.2f} of the bare engine (bar: 0.7)")
    peers_speed = speed["the peers' way, 2 processes"]
    print(f"  {ours / peers_speed:6.2f} times the peers' way (bar: 5)")
    if len(counts) != 1 or not same_ids(prefix, peers):
        sys.exit(f"{kind}: the ways give different tokens: {sorted(counts)}")
    print("          same ids")


def kinds(asked: str | None) -> Iterator[str]:
    yield from [asked] if asked else TOKENIZERS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=120, help="size of the corpus (at least)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tokenizer", choices=TOKENIZERS)
    asked = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    for kind in kinds(asked.tokenizer):
        with tempfile.TemporaryDirectory() as folder:
            measure(kind, asked.megabytes, asked.runs, Path(folder))


if __name__ == "__main__":
    main()
