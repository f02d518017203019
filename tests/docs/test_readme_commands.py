"""Protects that what the pages tell people to type works.

Every command of the pages runs, in a copy of the tree with a small text, in the order in which it
stands: as it is, or with what ``CHANGED`` adds to make it small. Those that cannot run here stand in
``NOT_RUN`` with the reason.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard

from megatron.neox_arguments.registry import KNOWN_KEYS
from tests.conversion.raw_files import write_raw
from tests.data.token_files import letters, write_documents
from tests.docs.shell_blocks import Command, commands_of
from tests.support.doors import environment
from tests.support.ranks import free_port

ROOT = Path(__file__).resolve().parents[2]
# Each goes on from what the commands of those before it have left.
JOURNEY = (
    "README.md",
    *(f"docs/{name}.md" for name in ("running", "hugging_face", "data", "parallelism")),
)
PAGES = (*JOURNEY, "CONTRIBUTING.md", "configs/README.md", "tools/quickstart/README.md")
# Whose commands are run with the slow tests: those of the tools have tests of their own among the others.
SLOW_PAGES = ("docs/hugging_face.md",)
# Of which only the links are followed here.
OTHER_PAGES = ("docs/architecture.md", "docs/cluster.md", "SECURITY.md", "CHANGELOG.md")
COMMANDS = [command for page in PAGES for command in commands_of(page, ROOT)]

# Why a command is not run. A key is the beginning of the command; the longest that fits counts.
NOT_RUN = {
    "make": "installs packages from the network and takes minutes; continuous integration runs it",
    ". .venv/bin/activate": "the environment that runs the tests is active already",
    "python3 -m venv": "makes an environment; make does the same",
    ".venv/bin/pip install": "downloads packages",
    "zstd ": "may not be installed; the test makes a smaller file of this kind with zstandard",
    "python -m pytest": "runs tests, of which this is one",
    "python -m coverage": "runs tests, of which this is one",
    "pip install": "downloads packages",
    "python -m tests.surface.collect": "is for a release; its own test calls it",
    "python tools/config/write_option_tests.py": "lists the tests, which the copy lacks; they run it",
    "python tools/config/diff.py": "its status is 1 where something differs; its own tests run it",
    "mypy": "make lint, in continuous integration",
}


@dataclass(frozen=True)
class Change:
    """How a command is run.

    Attributes:
        add: arguments that are put at its end.
        typed: what is typed into it.
        makes: files that it must leave.
        check: only check the configuration (``./deepy.py --check``), because a run needs something
            that the small text and the few steps do not give.
        aside: nothing after it needs its result: it may run at the same time.
        slow: it is run in the slow tests only, because it takes long and another is as good a sign.
    """

    add: str = ""
    typed: str = ""
    makes: tuple[str, ...] = ()
    check: bool = False
    aside: bool = False
    slow: bool = False


def _set(**values: object) -> str:
    return "".join(f" --set {key}={value}" for key, value in values.items())


# The 125M model has 50,257 × 768 embeddings, and takes minutes for a step on a CPU.
_SIZES = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
_SHORT = {"seq_length": 16, "max_position_embeddings": 16, "eval_iters": 1, "num_workers": 0}
_STEPS = {"train_iters": 2, "lr_decay_iters": 2}
SMALL = _set(**_SIZES, **_SHORT, **_STEPS)
NOTHING_KEPT = _set(save="null", load="null", log_dir="null", tensorboard_dir="null")
FEW_STEPS = _set(train_iters=4, eval_iters=1, checkpoint_factor=2)
FEW_TOKENS = _set(maximum_tokens=4)

CHANGED = {
    "./deepy.py train.py my.yml": Change(
        FEW_STEPS, makes=("checkpoints/mine/latest", "checkpoints/mine/metrics.jsonl")
    ),
    "./deepy.py generate.py my.yml configs/text_generation.yml --set text_gen_type=interactive": Change(
        typed="To open a file\n"
    ),
    "./deepy.py generate.py my.yml configs/text_generation.yml --set text_gen_type=input-file": Change(
        FEW_TOKENS, makes=("samples.jsonl",)
    ),
    "./deepy.py train.py -d configs 125M local_setup": Change(
        SMALL, makes=("checkpoints/global_step2/manifest.json", "logs/metrics.jsonl", "tensorboard")
    ),
    # Of the model whose checkpoint is there by now.
    "./deepy.py --check train.py -d configs 125M local_setup": Change(SMALL),
    "./deepy.py generate.py configs/125M.yml": Change(
        SMALL + FEW_TOKENS + _set(num_samples=2), makes=("samples.txt",)
    ),
    "./deepy.py eval.py -d configs": Change(SMALL, makes=("score.json",)),
    # Both start what ./deepy.py starts, and import it anew for each rank.
    "deepspeed --num_nodes=1": Change(SMALL + NOTHING_KEPT, aside=True, slow=True),
    "torchrun --nproc_per_node 2": Change(SMALL + NOTHING_KEPT, aside=True, slow=True),
    # ./deepy.py, which starts the same with one rank, is run in every test.
    "python train.py --config-file my.yml": Change(
        _set(train_iters=2, eval_iters=1) + NOTHING_KEPT, aside=True, slow=True
    ),
    "./deepy.py train.py my.yml --set train_iters=2000": Change(
        _set(exit_interval=6, eval_iters=1), makes=("checkpoints/mine/global_step6/manifest.json",)
    ),
    # Eight workers, as the page has it, would import what they need eight times.
    "python tools/datasets/preprocess_data.py --input ./data/mydataset.jsonl.zst": Change(
        " --workers 2"
    ),
    "python tools/ckpts/reshard.py": Change(makes=("checkpoints/whole/latest",)),
    # As long as the run whose checkpoint it is.
    "./deepy.py train.py my.yml --set load=checkpoints/whole": Change(FEW_STEPS, check=True),
    "python tools/ckpts/convert_neox_to_hf.py": Change(
        makes=("hf/mine/config.json", "hf/mine/tokenizer.json", "hf/mine/model.safetensors")
    ),
    "python tools/ckpts/convert_hf_to_neox.py": Change(
        makes=("checkpoints/from_hf/model.yml", "checkpoints/from_hf/latest")
    ),
    "python tools/ckpts/convert_raw_llama_weights_to_neox.py": Change(
        makes=("checkpoints/llama/model.yml", "checkpoints/llama/latest")
    ),
    "./deepy.py generate.py checkpoints/from_hf/model.yml": Change(
        FEW_TOKENS + _set(num_samples=1), makes=("samples.txt",)
    ),
    "./deepy.py eval.py my.yml --iteration 750": Change(check=True),
    "./deepy.py train.py my.yml --set finetune=true": Change(check=True),
    "./deepy.py train.py my.yml --set load=checkpoints/other": Change(check=True),
    "python tools/datasets/build_index.py": Change(_set(train_iters=10)),
}


# Commands of configs/README.md that are run as they stand.
SMALL_ENOUGH = tuple(f"./deepy.py {name}.py -d configs/cpu_smoke" for name in ("train", "generate"))


@dataclass(frozen=True)
class Done:
    """What was run, and how it ended."""

    ran: str
    status: int
    said: str
    missing: tuple[str, ...]


def entry_of(command: Command, table: Mapping[str, object]) -> str | None:
    """The longest key of ``table`` that ``command`` begins with."""
    return max((key for key in table if command.words.startswith(key)), key=len, default=None)


def change_of(command: Command) -> Change:
    """How ``command`` is run; as it stands by default."""
    key = entry_of(command, CHANGED)
    change = CHANGED[key] if key is not None else Change()
    if command.page == "configs/README.md" and not command.words.startswith(SMALL_ENOUGH):
        # That page makes no other token files.
        return Change(check=True)
    return change


def is_slow(command: Command) -> bool:
    return change_of(command).slow or command.page in SLOW_PAGES


def text_to_run(command: Command, change: Change) -> str:
    """The shell text of a command with its change."""
    text = command.text
    if change.check and "--check" not in text and "--deepspeed_json" not in text:
        text = text.replace("./deepy.py", "./deepy.py --check", 1)
    if change.add:
        text = re.sub(r"\s+#.*", "", text) + change.add
    # Both meet at port 29500 if nothing is said, which another program may have.
    return re.sub(r"^(torchrun|deepspeed) ", rf"\1 --master_port={free_port()} ", text)


def copy_of_the_tree(folder: Path) -> None:
    """What a command may change is copied, the rest is linked to."""
    for name in ("configs", "tools"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("megatron", "deepy.py", "train.py", "generate.py", "eval.py"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "tests").mkdir()
    (folder / "tests" / "assets").symlink_to(ROOT / "tests" / "assets")


def put_text_into(folder: Path) -> None:
    """A user's own text, and the same as ``data/mydataset.jsonl.zst``."""
    rows = (ROOT / "tools/quickstart/corpus.jsonl").read_text(encoding="utf-8").splitlines()
    pages = [json.loads(row)["text"][:20_000] for row in rows[-20:]]
    (folder / "texts").mkdir()
    (folder / "data").mkdir()
    for number, page in enumerate(pages):
        (folder / "texts" / f"{number:02}.txt").write_text(page, encoding="utf-8")
    lines = "".join(json.dumps({"text": page}) + "\n" for page in pages)
    (folder / "data" / "mydataset.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    shutil.copy(ROOT / "configs" / "local_setup.yml", folder / "my_cluster.yml")
    # Another text, of which the pages only check that it can be trained on.
    write_documents(folder / "data" / "other_text_document", letters(10, 41))
    write_raw(folder / "llama" / "7B", "grouped", files=2)


def run(command: Command, folder: Path) -> Done:
    """Run a command of a page in ``folder``."""
    change = change_of(command)
    text = text_to_run(command, change)
    bin_folder = Path(sys.executable).parent
    env = environment(PATH=f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    process = subprocess.run(
        ["bash", "-e", "-c", text],
        cwd=folder,
        env=env,
        input=change.typed,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    missing = tuple(name for name in change.makes if not (folder / name).exists())
    return Done(text, process.returncode, process.stdout, missing)


def run_after(before: Future[Done], command: Command, folder: Path) -> Done:
    """Run ``command`` when the one before it has ended."""
    before.result()
    return run(command, folder)


@pytest.fixture(scope="module")
def done(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Command, Future[Done]]]:
    """How each command ended, or will.

    Two lanes keep two cores busy: the commands of the journey, one after the other; and beside them
    those of the other pages, then those of the journey for which nothing waits.
    """
    results: dict[Command, Future[Done]] = {}
    asked = [
        item.callspec.params.get("command")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(1) as main_lane, ThreadPoolExecutor(1) as side_lane:
        others = [[page] for page in PAGES if page not in JOURNEY]
        for pages, lane in (*((pages, side_lane) for pages in others), (JOURNEY, main_lane)):
            folder = tmp_path_factory.mktemp("tree")
            copy_of_the_tree(folder)
            put_text_into(folder)
            before: Future[Done] | None = None
            for command in COMMANDS:
                change = change_of(command)
                if command.page not in pages or entry_of(command, NOT_RUN) is not None:
                    continue
                if is_slow(command) and command not in asked:
                    continue
                if before is not None and change.aside:
                    results[command] = side_lane.submit(run_after, before, command, folder)
                else:
                    results[command] = before = lane.submit(run, command, folder)
        yield results


@pytest.mark.ranks
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, id=str(one), marks=[pytest.mark.slow] if is_slow(one) else [])
        for one in COMMANDS
    ],
)
def test_command_works(command: Command, done: dict[Command, Future[Done]]) -> None:
    reason = entry_of(command, NOT_RUN)
    if reason is not None:
        assert entry_of(command, CHANGED) is None, "it is run, or it is not"
        return
    ended = done[command].result()
    assert ended.status == 0, f"$ {ended.ran}\n{ended.said[-3000:]}"
    assert "Traceback" not in ended.said, f"$ {ended.ran}\n{ended.said[-3000:]}"
    assert ended.missing == (), f"$ {ended.ran}\n{ended.said[-3000:]}"


@pytest.mark.parametrize("table", [NOT_RUN, CHANGED], ids=["NOT_RUN", "CHANGED"])
def test_every_entry_is_of_use(table: Mapping[str, object]) -> None:
    assert set(table) == {entry_of(command, table) for command in COMMANDS} - {None}


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_keys_of_the_tables_exist() -> None:
    text = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    section = text.split("## Data on several nodes")[1].split("\n## ")[0]
    keys = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert len(keys) > 5
    assert set(keys) <= KNOWN_KEYS


def test_pages_are_read_as_a_shell_would(tmp_path: Path) -> None:
    page = (
        "```bash\n# nothing\none \\\n  two   # why\n\ncat > x <<'END'\na: 'b\nEND\n"
        "python -c \"\nprint('x')\n\" > y\n```\n```yaml\nmake: 1\n```\n"
    )
    (tmp_path / "page.md").write_text(page)
    found = commands_of("page.md", tmp_path)
    assert [command.line for command in found] == [3, 6, 9]
    assert found[0].words == "one two # why"
    assert found[1].text.endswith("END")
