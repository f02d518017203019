"""Draw the losses of a ``metrics.jsonl`` into a picture: ``plot_loss.py METRICS PICTURE``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file is made; no screen is needed

from matplotlib import pyplot


def series(metrics: Path, name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric."""
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    found = [(row["iteration"], row[name]) for row in rows if name in row]
    return [step for step, _ in found], [value for _, value in found]


def draw(metrics: Path, picture: Path) -> None:
    """Training and validation loss over the steps, in nats per token."""
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    axes.plot(*series(metrics, "train/lm_loss"), linewidth=1.2, label="train")
    axes.plot(*series(metrics, "validation/lm_loss"), marker="o", label="validation")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=f"Loss of {metrics.parent}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(picture)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("metrics", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    draw(arguments.metrics, arguments.picture)
    print(f"loss curve: {arguments.picture}")


if __name__ == "__main__":
    main()
