"""The whole path on one machine's CPU in a few minutes: text, tokens, training, resume, score, sample.

Runs the same commands that a user types (each is shown before it runs), in ``quickstart_run/``.
A step whose result is there and newer than what it was made from is not done again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path("tools/quickstart")
RUN = Path("quickstart_run")
CONFIG = Path("configs/quickstart.yml")

CORPUS = HERE / "corpus.jsonl"
TOKENIZER = HERE / "tokenizer.json"
TEXT = RUN / "shakespeare.jsonl"
PREFIX = RUN / "shakespeare"
TOKENS = RUN / "shakespeare_text_document.idx"
CHECKPOINTS = RUN / "checkpoints"
LATEST = CHECKPOINTS / "latest"
METRICS = CHECKPOINTS / "metrics.jsonl"
SCORE = RUN / "score.json"
PICTURE = RUN / "loss.png"
PROMPT = RUN / "prompt.txt"
SAMPLE = RUN / "sample.jsonl"

# Rows of the corpus to learn from: the plays and poems.
LICENCE = "public domain texts"
CHOOSE = ("tools/quickstart/select_rows.py", CORPUS, TEXT, f"license={LICENCE}")
TOKENIZE = (
    *("tools/datasets/preprocess_data.py", "--input", TEXT, "--output-prefix", PREFIX),
    *("--tokenizer-type", "HFTokenizer", "--vocab-file", TOKENIZER),
    *("--dataset-impl", "mmap", "--workers", "2", "--append-eod"),
)
HALF_WAY = 700
PROMPT_TEXT = "HAMLET.\n"


@dataclass(frozen=True)
class Step:
    """One step: what it makes, from what, and how."""

    title: str
    makes: Path
    needs: tuple[Path, ...]
    work: Callable[[], None]

    def is_done(self) -> bool:
        if not self.makes.exists():
            return False
        made = self.makes.stat().st_mtime
        return all(need.exists() and need.stat().st_mtime <= made for need in self.needs)


def run(*command: str | Path) -> None:
    """Show a script and its arguments, run it in the project's folder, and end all if it fails."""
    words = [str(word) for word in command]
    start = "./" if words[0] == "deepy.py" else "python "
    print(f"$ {start}{shlex.join(words)}", flush=True)
    status = subprocess.run([sys.executable, *words], cwd=ROOT, check=False).returncode
    if status:
        sys.exit(f"quickstart: the command above ended with status {status}")


def choose_text() -> None:
    run(*CHOOSE)


def tokenize() -> None:
    run(*TOKENIZE)


def latest_step() -> int:
    """The step of the newest checkpoint, 0 without one."""
    if not LATEST.exists():
        return 0
    return int(LATEST.read_text().strip().removeprefix("global_step"))


def train_half() -> None:
    if latest_step() < HALF_WAY:
        run("deepy.py", "train.py", CONFIG, "--set", f"exit_interval={HALF_WAY}")
        print(
            f"\nThat run was told to stop after step {HALF_WAY}, as a scheduler might have done it."
        )


def train_rest() -> None:
    run("deepy.py", "train.py", CONFIG)


def evaluate() -> None:
    run("deepy.py", "eval.py", CONFIG, "--split", "valid", "--output", SCORE)


def draw() -> None:
    run("tools/quickstart/plot_loss.py", METRICS, PICTURE)


def generate() -> None:
    PROMPT.write_text(PROMPT_TEXT, encoding="utf-8")
    run(
        *("deepy.py", "generate.py", CONFIG, "configs/text_generation.yml"),
        *("--set", "text_gen_type=input-file", "--set", f"sample_input_file={PROMPT}"),
        *("--set", f"sample_output_file={SAMPLE}", "--set", "num_samples=1"),
        *("--set", "maximum_tokens=110", "--set", "temperature=0.7", "--set", "top_k=40"),
        *("--set", "num_gpus=1"),
    )


def steps(total_iters: int) -> list[Step]:
    """All steps in order. Training is done when the newest checkpoint is the last one."""
    return [
        Step("choose the text", TEXT, (CORPUS,), choose_text),
        Step("tokenize it", TOKENS, (TEXT, TOKENIZER), tokenize),
        Step(f"train up to step {HALF_WAY}", LATEST, (TOKENS, CONFIG), train_half),
        Step(
            f"resume and train up to step {total_iters}",
            CHECKPOINTS / f"global_step{total_iters}" / "manifest.json",
            (TOKENS, CONFIG),
            train_rest,
        ),
        Step("score it on the held-out plays", SCORE, (LATEST,), evaluate),
        Step("draw the loss", PICTURE, (METRICS,), draw),
        Step("let it write", SAMPLE, (LATEST,), generate),
    ]


def train_iters() -> int:
    """The number of steps that the configuration asks for."""
    from megatron.neox_arguments import NeoXArgs  # noqa: PLC0415 - needs ROOT on the path first

    return NeoXArgs.from_ymls([str(CONFIG)]).training.train_iters or 0


def known_words(sample: str) -> float:
    """Share of the sample's words of three letters or more that stand in the corpus."""
    words = _words(sample)
    corpus = set(_words(TEXT.read_text(encoding="utf-8")))
    return sum(word in corpus for word in words) / max(1, len(words))


def _words(text: str) -> list[str]:
    letters = "".join(c.lower() if c.isalpha() else " " for c in text.replace("\\n", " "))
    return [word for word in letters.split() if len(word) >= 3]


def report(seconds: float) -> None:
    """What was made, and what to try next."""
    rows = [json.loads(line) for line in METRICS.read_text().splitlines()]
    losses = [row["train/lm_loss"] for row in rows if "train/lm_loss" in row]
    score = json.loads(SCORE.read_text())
    sample = json.loads(SAMPLE.read_text().splitlines()[0])
    text = sample["context"] + sample["text"]
    share = known_words(sample["text"])
    print(f"\n{'─' * 78}\n{text.strip()}\n{'─' * 78}")
    print(
        f"Done in {seconds:.0f} s. Loss {losses[0]:.2f} → {losses[-1]:.2f} nats per token; held-out "
        f"plays {score['nats_per_byte']:.3f} nats per byte;\n"
        f"{share:.0%} of the sample's words of three letters or more occur in the corpus.\n"
        f"Picture: {PICTURE} · metrics: {METRICS} · checkpoints: {CHECKPOINTS}"
    )
    print(
        "\nTry next, after `. .venv/bin/activate`:\n"
        f"  1. another prompt:   ./deepy.py generate.py {CONFIG} configs/text_generation.yml "
        "--set text_gen_type=interactive --set num_gpus=1\n"
        f"  2. train longer:     ./deepy.py train.py {CONFIG} --set train_iters=3000 "
        "--set override_lr_scheduler=true\n"
        '  3. your own text:    README.md, "Your own text, in ten minutes"\n'
        "  4. a larger model:   configs/README.md explains how files are put together\n"
        "  5. the log again:    tensorboard --logdir quickstart_run/tensorboard"
    )


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    started = time.monotonic()
    sys.path.insert(0, str(ROOT))
    RUN.mkdir(exist_ok=True)
    plan = steps(train_iters())
    for number, step in enumerate(plan, start=1):
        head = f"[{number}/{len(plan)}] {step.title}"
        if step.is_done():
            print(f"{head}: done already", flush=True)
        else:
            print(f"\n{head}", flush=True)
            step.work()
    report(time.monotonic() - started)


if __name__ == "__main__":
    import os

    os.chdir(ROOT)
    # Its two processes would need a GPU each; on the CPU they run everywhere.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    main()
