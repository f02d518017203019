"""``./deepy.py --check``: the facts of a run without a run, without torch, within a second."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron.errors import ConfigError, LaunchError
from megatron.launch.main import main
from megatron.launch.vocabulary import count_vocabulary
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.sections import TokenizerArgs
from megatron.tokenizer import build_tokenizer
from tests.checkpointing.folders_on_disk import make_checkpoint
from tests.data.token_files import letters, write_documents
from tests.neox_arguments.test_shipped_configs import NAMES
from tests.support.doors import environment
from tests.support.small_config import small

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "tests" / "assets"


@pytest.fixture
def page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Writes a configuration and returns the lines of its page; the files that it names are there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    write_documents(tmp_path / "out" / "c_text_document", letters(10, 41))
    (tmp_path / "tok.json").touch()

    def page_of(*argv: str, **changes: Any) -> list[str]:
        (tmp_path / "run.yml").write_text(yaml.safe_dump(small(**changes)))
        assert main(["--check", *(argv or ("run",))]) == 0
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    return page_of


def test_a_whole_page(page: Any) -> None:
    lines = page(
        split="8,2,0",
        eval_iters=1,
        eval_interval=2,
        num_gpus=2,
        train_iters=30,
        lr_decay_iters=30,
        log_interval=10,
        warmup=0.1,
        tokenizer_type="CharLevelTokenizer",
        vocab_file=None,
        rope_fusion=True,
    )
    assert lines[0].startswith("configuration run.yml, hash ")
    # 512 x 32 twice; a layer: norms 4 x 32, qkv 32 x 96 + 96, dense 32 x 32 + 32, 32 x 128 + 128 and back.
    parameters = 2 * 512 * 32 + 2 * (128 + 3168 + 1056 + 4224 + 4128) + 64
    assert (
        f"{parameters:,} parameters, 41.9k of them outside the embeddings; vocabulary 512" in lines
    )
    assert "layout 2 ranks on 1 node = data 2 × model 1; cpu, gloo, fp32, ZeRO stage 0" in lines
    assert (
        "batch 4 samples a step = 2 per rank × 1 accumulation × 2 data; 32 tokens a step" in lines
    )
    # 8 documents of 41 tokens: (328 - 1) // 8; 30 steps of 4 samples.
    assert (
        "train 8 documents; an epoch has 328 tokens, 40 samples; 30 steps take 120 samples, 3.00 epochs"
        in lines
    )
    assert (
        "valid 2 documents; an epoch has 82 tokens, 10 samples; it takes 64 samples, 6.40 epochs"
        in lines
    )
    assert "length 30 steps = 120 samples = 960 tokens" in lines
    assert "an epoch is 10.0 steps" in lines
    assert "learning rate up to 0.001 in 3 steps, then cosine to 0.0001 at step 30" in lines
    # 6 x (all but the looked-up table) + 12 L h s
    flops = 6 * (parameters - 512 * 32) + 12 * 2 * 32 * 8
    assert f"compute {flops / 1e3:.0f} kFLOP a token, forward and backward; " in "\n".join(lines)
    assert "attention global × 2" in lines
    assert "ignored rope_fusion (kernels are PyTorch's own here, whatever is fused)" in lines
    assert not any(line.startswith("look at") for line in lines)


@pytest.mark.parametrize(
    ("changes", "then"),
    [
        ({"lr_decay_style": "linear", "lr_decay_iters": 20}, "linear to 0.0001 at step 20"),
        ({"lr_decay_style": "linear", "lr_decay_fraction": 0}, "linear to 0.0001 at step 1"),
        ({"lr_decay_style": "exponential"}, "exponential to 0.0005 at step 30"),
        ({"lr_decay_style": "exponential", "min_lr": 8e-4}, "exponential to 0.0008 at step 30"),
        ({"lr_decay_style": "constant"}, "constant"),
    ],
    ids=str,
)
def test_where_the_learning_rate_ends(page: Any, changes: dict[str, Any], then: str) -> None:
    """As the run's own schedule has it: lr is 0.001."""
    lines = page(**{"train_iters": 30, "lr_decay_iters": None, "min_lr": 1e-4, **changes})
    (line,) = [line for line in lines if line.startswith("learning rate up to 0.001 in ")]
    assert line.endswith(f" steps, then {then}")


def test_what_is_offloaded_is_said(page: Any) -> None:
    host = {"device": "cpu"}
    zero = {"stage": 3, "offload_optimizer": host, "offload_param": host}
    text = "\n".join(page(zero_optimization=zero))
    assert "fp32, ZeRO stage 3, optimizer and weights in the host's memory" in text
    assert "optimizer 0 B" in text
    assert "more in the host's memory" in text
    assert "in the host's memory" not in "\n".join(page())


def test_memory_with_and_without_recomputation(page: Any) -> None:
    lines = page(checkpoint_activations=True)
    memory = next(line for line in lines if line.startswith("memory"))
    both = next(line for line in lines if line.startswith("activations "))
    assert "weights " in memory
    assert "optimizer " in memory
    with_it = both.split(" with checkpoint_activations")[0].removeprefix("activations ")
    assert f"activations {with_it}" in memory


def test_layers_that_see_a_window_say_so(page: Any) -> None:
    assert "attention global of 4 tokens × 2" in page(sliding_window_width=4)
    mixed = page(sliding_window_width=4, attention_config=[[["local", "global"], 1]])
    assert "attention local of 4 tokens × 1, global × 1" in mixed


def test_ranks_that_share_sequences(page: Any) -> None:
    def activations(lines: list[str]) -> float:
        both = next(line for line in lines if line.startswith("activations "))
        size, unit = both.split(", ")[1].split()[:2]
        return float(size) * {"KiB": 1, "MiB": 1024}[unit]

    one = page("run", "--set", "num_gpus=1")
    two = page("run", "--set", "num_gpus=2", "--set", "context_parallel_size=2")
    layout = "layout 2 ranks on 1 node = data 1 × context 2 × model 1; cpu, gloo, fp32"
    assert any(line.startswith(layout) for line in two)
    assert activations(two) == pytest.approx(activations(one) / 2, rel=0.01)
    assert [line for line in two if "parameters" in line] == [
        line for line in one if "parameters" in line
    ]


def test_doubts_are_looked_at(page: Any) -> None:
    text = "\n".join(page(warmup=1.0, lr_decay_iters=6, split="1,0,0", save=None))
    assert "look at warmup: 1 x 6 decay steps = 6 steps of warm-up, the run has 3" in text
    assert 'split: "1,0,0" gives validation nothing: there is none' in text
    assert "vocab_file: tok.json: the vocabulary is not known here, and counted as 50,304" in text


def test_a_run_that_could_not_start_for_want_of_files(
    page: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = {"data_path": "out/lost", "vocab_file": "lost.json"}
    for script in ((), ("train.py",)):
        with pytest.raises(LaunchError) as raised:
            page(*script, "run", **lost)
        said, shown = str(raised.value), capsys.readouterr().out
        lines = (tmp_path / "run.yml").read_text().splitlines()
        at = {key: lines.index(f"{key}: {path}") + 1 for key, path in lost.items()}
        assert f"  run.yml:{at['vocab_file']}: vocab_file: no such file: " in said
        assert f"  run.yml:{at['data_path']}: data_path: out/lost.idx: no such file" in said
        assert "prefixes found in out: c_text_document" in said
        assert "tools/datasets/preprocess_data.py" in said
        assert shown.startswith("configuration run.yml, hash ")
        assert "length 3 steps = 6 samples" in " ".join(shown.split())
    # It needs none.
    page("generate.py", "run", data_path="out/lost")
    paths = {"data_path": None, "train_data_paths": ["out/c_text_document"]}
    for more in (
        {**paths, "valid_data_paths": ["out/lost"]},
        {**paths, "train_label_data_paths": ["out/lost"]},
        {"data_path": "out/lost", "pack_impl": "unpacked"},
    ):
        with pytest.raises(LaunchError, match=r"out/lost\.idx: no such file"):
            page(**more)


@pytest.mark.parametrize("script", ["train.py", "generate.py", "eval.py"])
def test_a_tokenizer_without_its_files_is_no_start(page: Any, script: str) -> None:
    none = {"tokenizer_type": "GPT2BPETokenizer", "vocab_file": None}
    page(**none)  # a configuration may be checked without
    with pytest.raises(LaunchError) as raised:
        page(script, "run", **none)
    assert "GPT2BPETokenizer needs vocab_file, which is not set" in str(raised.value)
    assert "GPT2BPETokenizer needs merge_file, which is not set" in str(raised.value)


def test_half_a_tokenizer_is_none(page: Any) -> None:
    for half in ({"vocab_file": "tok.json"}, {"vocab_file": None, "merge_file": "tok.json"}):
        with pytest.raises(LaunchError, match="GPT2BPETokenizer needs"):
            page(tokenizer_type="GPT2BPETokenizer", **half)
    with pytest.raises(LaunchError, match=r"merge_file: no such file: .*merges\.txt"):
        page(tokenizer_type="HFGPT2Tokenizer", vocab_file="tok.json")  # expected beside it


def test_what_a_tokenizer_does_not_read_is_not_missed(page: Any) -> None:
    page("train.py", "run", merge_file="lost.txt")
    page("train.py", "run", tokenizer_type="CharLevelTokenizer", vocab_file="lost.json")
    page("train.py", "run", tokenizer_type="TiktokenTokenizer", vocab_file="cl100k_base")
    with pytest.raises(LaunchError, match=r"vocab_file: no such file: .*cl100k_base\.tiktoken"):
        page(tokenizer_type="TiktokenTokenizer", vocab_file="lost/cl100k_base.tiktoken")


def test_training_without_data_is_no_start(page: Any) -> None:
    page(data_path=None)  # a configuration may be checked without
    with pytest.raises(
        ConfigError, match="training needs data_path or train_data_paths: not given"
    ):
        page("train.py", "run", data_path=None)


def test_what_a_shipped_file_names_stands_for_the_users_own(page: Any, tmp_path: Path) -> None:
    """As it is shipped; in a file of the user's the same path is meant."""
    configs = ROOT / "configs"
    named = "data/mydataset_text_document.idx: no such file"
    lines = page(str(configs / "125M.yml"), str(configs / "local_setup.yml"))
    assert any(named in line for line in lines)
    text = (configs / "local_setup.yml").read_text(encoding="utf-8")
    (tmp_path / "mine.yml").write_text(text + "seed: 2\n")
    with pytest.raises(LaunchError, match=named):
        page(str(configs / "125M.yml"), "mine.yml")


def test_a_part_is_checked_as_a_part(page: Any, tmp_path: Path) -> None:
    (tmp_path / "part.yml").write_text("train_iters: 3\nseed: 2\n")
    assert page("part")[1].startswith("part there is no model in it")
    (tmp_path / "part.yml").write_text("train_iters: x\n")
    with pytest.raises(ConfigError, match=r'part\.yml:1: train_iters: found "x"'):
        page("part")
    (tmp_path / "part.yml").write_text("train_iters: 3\n")
    with pytest.raises(LaunchError, match="there is no model"):
        main(["--deepspeed_json", "part"])


def test_a_start_is_checked_as_a_start(page: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')")
    lines = page("train.py", "run", "--set", "num_gpus=2")
    command = next(line for line in lines if line.startswith("command"))
    assert command.endswith("-u train.py --config-file run.yml --set num_gpus=2")
    assert not any("MEGATRON_CONFIGURATION" in line for line in lines)
    assert not (tmp_path / "started").exists()
    with pytest.raises(ConfigError, match="train_micro_batch_size_per_gpu: missing"):
        page("train.py", "run", train_micro_batch_size_per_gpu=...)


def test_the_hosts_of_a_start_are_counted_and_secrets_are_not_shown(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    monkeypatch.setenv("WANDB_API_KEY", "geheim")
    lines = page("train.py", "run", hostfile="hosts", train_micro_batch_size_per_gpu=1)
    assert any(line.startswith("layout 4 ranks on 2 nodes = data 4") for line in lines)
    environment = next(line for line in lines if line.startswith("environment"))
    assert "WANDB_API_KEY=(not shown)" in environment
    assert "geheim" not in "\n".join(lines)


def test_a_shape_without_a_batch_is_fine(page: Any) -> None:
    lines = page(train_micro_batch_size_per_gpu=..., padded_vocab_size=1000)
    assert not any(line.startswith(("batch", "memory", "length")) for line in lines)
    assert any(line.endswith("vocabulary 1,000") for line in lines)


def test_deepspeeds_json(page: Any, capsys: pytest.CaptureFixture[str]) -> None:
    page()
    assert main(["--deepspeed_json", "run", "--set", "gradient_clipping=0.5"]) == 0
    assert json.loads(capsys.readouterr().out)["gradient_clipping"] == 0.5


@pytest.mark.parametrize(
    "settings",
    [
        TokenizerArgs("CharLevelTokenizer"),
        TokenizerArgs("HFTokenizer", str(ASSETS / "neox20b" / "20B_tokenizer.json")),
        TokenizerArgs("HFTokenizer", str(ROOT / "tools" / "quickstart" / "tokenizer.json")),
        TokenizerArgs(
            "GPT2BPETokenizer",
            str(ASSETS / "gpt2" / "vocab.json"),
            str(ASSETS / "gpt2" / "merges.txt"),
        ),
        TokenizerArgs("HFGPT2Tokenizer", str(ASSETS / "gpt2")),
    ],
    ids=lambda settings: settings.tokenizer_type,
)
def test_a_vocabulary_is_counted_as_its_tokenizer_counts(settings: TokenizerArgs) -> None:
    tokenizer = build_tokenizer(settings.tokenizer_type, settings.vocab_file, settings.merge_file)
    assert count_vocabulary(settings) == tokenizer.vocab_size


def test_an_unreadable_vocabulary_is_unknown(tmp_path: Path) -> None:
    for text in ("", "[1]", '{"model": {}}', '{"model": {"vocab": {"a": "x"}}}'):
        (tmp_path / "v.json").write_text(text)
        assert count_vocabulary(TokenizerArgs("HFTokenizer", str(tmp_path / "v.json"))) is None


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_file_passes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "-d", str(ROOT / "configs"), name]) == 0
    assert capsys.readouterr().out.startswith("configuration ")


def test_it_takes_no_torch_and_less_than_a_second() -> None:
    code = (
        "import sys, resource; from megatron.launch.main import main;"
        "main(['--check', 'configs/125M.yml', 'configs/local_setup.yml']);"
        "used = resource.getrusage(resource.RUSAGE_SELF);"
        "sys.exit('torch' in sys.modules or used.ru_utime + used.ru_stime > 1)"
    )
    command = [sys.executable, "-c", code]
    subprocess.run(
        command, cwd=ROOT, env=environment(), check=True, timeout=60, stdout=subprocess.DEVNULL
    )


def test_a_pipeline_is_described_and_too_few_micro_batches_looked_at(page: Any) -> None:
    lines = page(pipe_parallel_size=2, num_gpus=2, gradient_accumulation_steps=1)
    assert (
        "pipeline 2 stages of 1 transformer layers; with 1 micro-batches a step each waits 50% of the time"
        in lines
    )
    assert any("a rank of the largest stage beside the program" in line for line in lines)
    assert any(
        "gradient_accumulation_steps: 1 micro-batches cannot keep 2 pipeline stages" in line
        for line in lines
    )
    lines = page(pipe_parallel_size=2, num_gpus=2, gradient_accumulation_steps=8)
    assert not any("cannot keep" in line for line in lines)


def write_checkpoint(root: Path, schedule: dict[str, Any] | None = None, **model: Any) -> None:
    """One of step 20 that two ranks wrote with ZeRO stage 1, of the model of the page and ``model``."""
    state = {} if schedule is None else {"lr_schedule": schedule}
    args = NeoXArgs.from_dict(small(**model))
    config = json.dumps(args.flat())
    files = {"configs/effective_config.json": len(config)}
    folder = make_checkpoint(root, 20, disks=[files], state=state)
    (folder / "configs" / "effective_config.json").write_text(config)
    (root / "latest").write_text("global_step20")


def test_what_a_start_would_resume_is_said(page: Any, tmp_path: Path) -> None:
    start = ("train.py", "run", "--set", "num_gpus=2")
    assert "load ckpt: no checkpoint yet: the run starts from step 0" in page(*start)
    write_checkpoint(tmp_path / "ckpt")
    form = "step 20, pipe 1 × data 2 × model 1, ZeRO 1, fp32, with the optimizer's state"
    expected = f"load {tmp_path}/ckpt/global_step20: {form}"
    same = {"zero_optimization": {"stage": 1}}
    assert expected in page(*start, **same)
    for more in ({"reshape_on_load": True}, {"no_load_optim": True}):
        assert expected in page(*start, **more)
    tuned = {"finetune": True, "save": "tuned"}
    assert f"{expected}; its weights alone are taken (finetune)" in page(*start, **tuned)
    # A configuration is checked, and no start: on how many ranks, nobody has said.
    assert not any(line.startswith("load ") for line in page())
    assert not any(line.startswith("load ") for line in page(*start, load=None, save="new"))
    with pytest.raises(LaunchError, match=r"yml:\d+: save: ckpt holds global_step20, which this"):
        page(*start, finetune=True)
    with pytest.raises(
        LaunchError, match="save: ckpt holds global_step20, which this run does not"
    ):
        page(*start, load=None)


@pytest.mark.parametrize(
    ("theirs", "ours", "refusal"),
    [
        ({}, {}, " does not fit this run\n      found: files of zero_stage 1, this run has 0"),
        (
            {"hidden_size": 64},
            {"reshape_on_load": True},
            ": its run trained another model than this configuration describes\n"
            "      checkpoint → configuration:\n        hidden_size: 64 → 32\n",
        ),
    ],
    ids=["layout", "model"],
)
def test_a_checkpoint_that_does_not_fit_is_no_start(
    page: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    theirs: dict[str, Any],
    ours: dict[str, Any],
    refusal: str,
) -> None:
    write_checkpoint(tmp_path / "ckpt", **theirs)
    with pytest.raises(LaunchError) as raised:
        page("train.py", "run", "--set", "num_gpus=2", **ours)
    line = (tmp_path / "run.yml").read_text().splitlines().index("load: ckpt") + 1
    where = f"  run.yml:{line}: load: {tmp_path}/ckpt/global_step20"
    assert f"{where}{refusal}" in str(raised.value)
    # What was found is shown all the same.
    assert "global_step20: step 20, pipe 1" in " ".join(capsys.readouterr().out.split())


SCHEDULE = {"lr": 0.001, "min_lr": 0.0001, "length": 6, "warmup": 0.0, "style": "cosine"}


def test_another_schedule_is_no_start(page: Any, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "ckpt", SCHEDULE)
    start = ("train.py", "run", "--set", "num_gpus=2")
    same = {"zero_optimization": {"stage": 1}}
    longer = same | {"lr_decay_iters": 7}
    assert any(line.startswith("load ") for line in page(*start, **same))
    with pytest.raises(LaunchError, match=r"schedule differs .*\n.*\n +length: 6 → 7\n"):
        page(*start, **longer)
    for more in ("override_lr_scheduler", "use_checkpoint_lr_scheduler"):
        page(*start, **longer, **{more: True})
    page(*start, **longer, finetune=True, save="tuned")
    # How many steps train_epochs are, the data says: the run compares then.
    by_epochs = {"train_iters": None, "train_epochs": 1, "lr_decay_iters": None}
    page(*start, **same, **by_epochs)


def test_a_step_is_asked_for_and_nothing_is_there(page: Any) -> None:
    with pytest.raises(LaunchError, match=r"load: .*ckpt has no checkpoint of step 7\n"):
        page("train.py", "run", "--set", "iteration=7")


def test_the_disks_of_other_nodes_are_not_judged_from_here(page: Any, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "ckpt", hidden_size=64)
    (tmp_path / "hosts").write_text("far1 slots=1\nfar2 slots=1\n")
    start = ("train.py", "run", "--set", "hostfile=hosts")
    lines = page(*start, checkpoint={"use_node_local_storage": True})
    assert "load ckpt: on the disks of the run's own nodes: not looked at here" in lines
    with pytest.raises(LaunchError, match="trained another model"):
        page(*start)  # one file system for all


@pytest.mark.parametrize("more", ["seed=1", "iteration=7", "finetune=true"])
def test_a_file_system_of_other_hosts_is_not_judged_from_here(
    page: Any, tmp_path: Path, more: str
) -> None:
    """A login node may lack the mount that the run's hosts have; a host of the run may not."""
    (tmp_path / "hosts").write_text("far1 slots=1\nfar2 slots=1\n")
    start = ("train.py", "run", "--set", more)
    lines = page(*start, "--set", "hostfile=hosts", load="/no-such-mount/ckpt", save=None)
    assert (
        "load /no-such-mount/ckpt: there is no /no-such-mount on this host, which is not the run's first: "
        "not looked at here"
    ) in lines
    if more != "seed=1":
        with pytest.raises(
            LaunchError, match=r"load: /no-such-mount/ckpt (has|holds) no checkpoint"
        ):
            page(*start, load="/no-such-mount/ckpt", save=None)


def test_a_broken_checkpoint_is_no_start(
    page: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path / "ckpt")
    (tmp_path / "ckpt" / "global_step20" / "manifest.json").write_text("{")
    with pytest.raises(LaunchError, match=r"run\.yml:\d+: load: .*manifest\.json cannot be read"):
        page("train.py", "run")
    assert "load ckpt: cannot be used" in " ".join(capsys.readouterr().out.split())


def test_nccl_without_gpus_is_no_start(page: Any, capsys: pytest.CaptureFixture[str]) -> None:
    page(distributed_backend="nccl")  # the configuration alone is right
    with pytest.raises(LaunchError, match="nccl needs GPUs, and there are none here"):
        page("train.py", "run", distributed_backend="nccl")
    assert "nccl" in capsys.readouterr().out  # the page comes first
