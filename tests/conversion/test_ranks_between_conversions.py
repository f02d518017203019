"""Protects that ranks of any layout compute what transformers does, and give back what they got."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from megatron.conversion import Layout, export_checkpoint, import_folder
from tests.conversion.hf_models import CASES, VOCAB, assert_same_tensors, make_model, save_model
from tests.conversion.ranks_that_load import Visit, run_visits
from tests.support.ranks import run_ranks

TOKENS = torch.randint(0, VOCAB, (2, 24), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def reference(case: str) -> np.ndarray:
    found: np.ndarray = make_model(case)(TOKENS).logits.numpy()
    return found


def travel(root: Path, cases: list[str], layouts: list[tuple[int, ...]], written: Layout) -> None:
    """Import each case, load it in each layout, compare logits, save there and export.

    Args:
        root: an empty folder.
        cases: of :data:`CASES`.
        layouts: (ranks that share each weight, stages, copies, ZeRO stage), all of as many ranks.
        written: the layout of the imported files.
    """
    visits = {}
    for case in cases:
        save_model(case, root / case / "theirs")
        import_folder(root / case / "theirs", root / case / "ours", layout=written)
        for layout in layouts:
            save = root / case / f"in {layout}"
            visits[case, layout] = Visit(root / case / "ours", save, *layout)
    (ranks,) = {visit.ranks for visit in visits.values()}
    logits, *_ = run_ranks(ranks, run_visits, list(visits.values()), TOKENS.numpy(), timeout=600.0)
    for (case, layout), found in zip(visits, logits, strict=True):
        assert np.abs(found - reference(case)).max() < 1e-4, (case, layout)
        save = visits[case, layout].save
        done = export_checkpoint(save, root / case / f"back from {save.name}")
        assert done.comparison.difference is not None
        assert_same_tensors(root / case / "theirs", root / case / f"back from {save.name}")


@pytest.mark.ranks
def test_two_ranks(tmp_path: Path) -> None:
    """Biases, whole heads; grouped heads, tied; norms of heads. In files for another layout."""
    cases = ["gpt_neox parallel untied", "llama 4/1", "qwen3"]
    travel(tmp_path, cases, [(2, 0), (1, 2), (1, 0, 2, 3)], Layout(4, 0))


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("written", [Layout(), Layout(2, 1), Layout(4, 2)], ids=str)
def test_every_family_in_every_layout(tmp_path: Path, ranks: int, written: Layout) -> None:
    layouts: list[tuple[int, ...]] = [
        (model, pipe)
        for model, pipe in product((1, 2, 4), (0, 1, 2))
        if model * max(1, pipe) == ranks
    ]
    travel(tmp_path, list(CASES), layouts, written)
