"""Several files, DeepSpeed's own file, the command line: what wins, and what is refused."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import yaml

from megatron.errors import ConfigError
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.arguments_cli import (
    RankParser,
    add_config_arguments,
    args_from_cli,
)
from tests.support.small_config import small


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("base.yml").write_text(yaml.safe_dump(small(train_iters=..., precision=...)))
    return tmp_path


def message(*paths: str, **options: object) -> str:
    with pytest.raises(ConfigError) as error:
        NeoXArgs.from_ymls(paths, **options)  # type: ignore[arg-type]
    return str(error.value)


# Case 7: duplicate keys.


def test_a_key_twice_in_one_file(base: Path) -> None:
    Path("d1.yml").write_text('{"train_iters": 10, "train_iters": 20}')
    assert message("base.yml", "d1.yml") == (
        "d1.yml:1: train_iters: given twice, first on line 1: keep one"
    )


def test_a_key_in_two_spellings(base: Path) -> None:
    Path("d2.yml").write_text('{"seq-length": 8,\n "seq_length": 16}')
    assert "d2.yml:2: seq_length: given twice, first on line 1 as seq-length" in message("d2.yml")


def test_a_key_in_two_files(base: Path) -> None:
    Path("d3.yml").write_text('{"train-iters": 10}')
    Path("d4.yml").write_text('{"train-iters": 10}')
    assert message("base.yml", "d3.yml", "d4.yml") == (
        "d4.yml:1: train_iters: given twice, first in d3.yml:1: keep one"
    )


def test_a_key_twice_inside_a_group(base: Path) -> None:
    Path("d5.yml").write_text('{"optimizer": {"type": "Adam", "params": {"lr": 0.1, "lr": 0.001}}}')
    assert "d5.yml:1: optimizer.params.lr: given twice, first on line 1: keep one" in message(
        "d5.yml"
    )


def test_a_file_named_twice(base: Path) -> None:
    assert "base.yml: is named twice on the command line" in message("base.yml", "base")


# Case 8: unknown keys and broken YAML.


def test_unknown_keys_come_together_with_what_they_mean(base: Path) -> None:
    Path("t.yml").write_text('{"train_iters": 3, "save_interval": 500,\n "hiden_size": 32}')
    assert message("t.yml") == (
        "the configuration has 3 problems:\n"
        "  t.yml:1: save_interval: unknown key; here it is called checkpoint_factor\n"
        "  t.yml:2: hiden_size: unknown key; did you mean hidden_size?\n"
        "  num_layers, num_attention_heads, seq_length: missing: every configuration needs them"
    )


def test_broken_yaml_is_a_message(base: Path) -> None:
    Path("comma.yml").write_text(
        '{\n  "num-samples": 10\n  "sample-input-file": "prompt.txt",\n}\n'
    )
    found = message("comma.yml")
    assert found.startswith("comma.yml:3: column 22: ")
    assert "line 2" in found


def test_many_problems_are_grouped_by_file_and_kept_to_ten_lines(base: Path) -> None:
    Path("z.yml").write_text("".join(f"wrong_{i}: 1\n" for i in range(12)))
    Path("a.yml").write_text("seed: x\nwarmup: 2\n")
    lines = message("base.yml", "z.yml", "a.yml").splitlines()
    assert len(lines) == 10
    assert lines[0] == "the configuration has 14 problems:"
    assert [line.split(":")[0].strip() for line in lines[1:9]] == ["z.yml"] * 8
    assert lines[9] == "  and 6 more, about: wrong_8, wrong_9, wrong_10, wrong_11, seed, warmup"


# Files.


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bsae", "bsae: no such configuration file in HERE; did you mean base.yml?"),
        ("BASE", "BASE: no such configuration file in HERE; did you mean base.yml?"),
        ("no/base", "no/base: no such configuration file: HERE/no is no folder"),
        ("../base", "../base: no such configuration file in PARENT"),
        (".", ".: no such configuration file in HERE"),
    ],
)
def test_missing_files(base: Path, name: str, text: str) -> None:
    assert message(name) == text.replace("HERE", str(base)).replace("PARENT", str(base.parent))


def test_no_text_and_too_large(base: Path) -> None:
    Path("x.yml").write_bytes(b"a: \xff\n")
    Path("big.yml").write_text("#" * (5 << 20))
    found = message("x.yml", "big.yml")
    assert "x.yml: is no UTF-8 text (byte 3)" in found
    assert "big.yml: is too large to be a configuration file" in found
    # A file that can be opened, and at whose start nothing can be read.
    assert message("/proc/self/mem") == "/proc/self/mem: cannot be read: Input/output error"


def test_a_text_is_what_is_written(base: Path) -> None:
    """Also where YAML would make a number of it."""
    Path("run.yml").write_text("log_dir: 1e3\ntensorboard_dir: 010_runs\n")
    args = NeoXArgs.from_ymls(["base.yml", "run.yml"])
    assert (args.logging.log_dir, args.logging.tensorboard_dir) == ("1e3", "010_runs")


def test_null_under_another_name_gives_nothing(base: Path) -> None:
    Path("run.yml").write_text("batch_size: null\n")
    args = NeoXArgs.from_ymls(["base.yml", "run.yml"])
    assert args.batch.train_micro_batch_size_per_gpu == 2


def test_a_step_needs_a_folder(base: Path) -> None:
    found = message("base.yml", overrides=["iteration=3", "load=null"])
    assert found == "command line: iteration: found 3, but load is not given"


def test_conf_dir_endings_and_the_texts_are_kept(base: Path) -> None:
    folder = base / "configs"
    folder.mkdir()
    (folder / "run.yml").write_text("train_iters: 7\n")
    args = NeoXArgs.from_ymls(["base", "run"], conf_dir="configs")
    assert args.training.train_iters == 7
    assert [(file.path, file.text) for file in args.files][1] == (
        "configs/run.yml",
        "train_iters: 7\n",
    )


# DeepSpeed's own file.


def test_deepspeed_file_may_repeat_equal_values(base: Path) -> None:
    Path("ds.json").write_text(
        json.dumps(
            {
                "train_micro_batch_size_per_gpu": 2.0,
                "gradient_clipping": 0.5,
                "bf16": {"enabled": True},
            }
        )
    )
    args = NeoXArgs.from_ymls(["base.yml"], deepspeed_config="ds.json")
    assert args.optim.gradient_clipping == 0.5
    assert args.model.precision == "bfloat16"
    assert [file.path for file in args.files] == ["base.yml", "ds.json"]


def test_deepspeed_file_may_not_contradict(base: Path) -> None:
    Path("ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": 3,\n "zero_optimization": {"stage": 1}}'
    )
    found = message("base.yml", deepspeed_config="ds.json")
    assert "ds.json:1: train_micro_batch_size_per_gpu: given twice, first in base.yml:" in found
    assert "with 2, here with 3: keep one" in found
    assert "ds.json:2: zero_optimization: given twice" in found


# The command line.


def test_overrides_win_and_are_typed(base: Path) -> None:
    args = NeoXArgs.from_ymls(
        ["base.yml"],
        overrides=[
            "train-iters=1e3",
            "optimizer.params.lr=1e-4",
            "optimizer.params.betas=[0.8, 0.9]",
            "batch_size=4",
            "data_path=a: b, [c",
            "save=null",
            "git_hash=0123",
            "zero_stage=1",
        ],
    )
    assert args.training.train_iters == 1000
    assert isinstance(args.training.train_iters, int)
    assert args.optim.lr == 1e-4
    assert args.optim.betas == (0.8, 0.9)
    assert args.batch.train_micro_batch_size_per_gpu == 4
    assert args.data.data_path == "a: b, [c"
    assert args.checkpointing.save is None
    assert args.legacy.git_hash == "0123"
    assert NeoXArgs.from_ymls(["base.yml"], overrides=["load="]).checkpointing.load is None
    assert args.optim.zero_stage == 1
    assert args.deepspeed_config(1)["optimizer"]["params"]["lr"] == 1e-4


def test_a_short_name_overrides_the_nested_key(base: Path) -> None:
    args = NeoXArgs.from_ymls(["base.yml"], overrides=["lr=5e-4"])
    assert args.optim.lr == 5e-4
    assert args.deepspeed_config(1)["optimizer"]["params"]["lr"] == 5e-4


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (
            "train_iters",
            "command line: --set train_iters: the value is missing: write --set train_iters=VALUE, with = "
            "and without a space",
        ),
        ("=3", "command line: --set =3: expected --set key=value"),
        ("seed=", "command line: seed: the value is empty: write it, or null for none"),
        (
            "seed=010",
            "command line: seed: 010 is ambiguous (eight-based in YAML 1.1): write it without the 0 in front",
        ),
        ("train_itres=3", "command line: train_itres: unknown key; did you mean train_iters?"),
        (
            "seed=x",
            'command line: seed: found "x", expected a whole number from 0 up to 4294967295',
        ),
        ("seed.a=3", "command line: seed.a: seed is 1234, which holds no keys"),
        (
            "log_interval.a=3",
            "command line: log_interval: found {'a': 3}, expected a whole number from 1",
        ),
        ("warmup=[1", 'command line: warmup: cannot read the value "[1": put it in quotes'),
        (
            "warmup=.nan",
            "command line: warmup: found nan, expected a number from 0 up to 1, neither infinite nor nan",
        ),
    ],
)
def test_bad_overrides(base: Path, override: str, text: str) -> None:
    Path("base.yml").write_text(yaml.safe_dump(small(seed=1234)))
    assert message("base.yml", overrides=[override]) == text


def test_an_override_given_twice(base: Path) -> None:
    found = message("base.yml", overrides=["lr=1e-4", "optimizer.params.lr=1e-3"])
    assert found == "command line: optimizer.params.lr: given twice on the command line: keep one"


def test_overrides_of_a_group_and_of_its_keys(base: Path) -> None:
    overrides = ["optimizer.params={betas: [0.8, 0.9]}", "optimizer.params.lr=4e-4"]
    optim = NeoXArgs.from_ymls(["base.yml"], overrides=overrides).optim
    assert (optim.lr, optim.betas) == (4e-4, (0.8, 0.9))
    found = message("base.yml", overrides=["optimizer.params={lr: 1e-4}", "lr=2e-4"])
    assert found == "command line: lr: given twice on the command line: keep one"
    found = message("base.yml", overrides=overrides[::-1])
    assert found == (
        "command line: optimizer.params: undoes optimizer.params.lr, which stands before it: put it first, "
        "or keep one"
    )


def parse(*argv: str) -> NeoXArgs:
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    return args_from_cli(parser.parse_args(argv))


def test_the_ways_to_name_files(base: Path) -> None:
    Path("run.yml").write_text("train_iters: 7\n")
    Path("ds.json").write_text('{"gradient_clipping": 0.25}')
    for argv in (
        ("base.yml", "run.yml"),
        ("-d", ".", "base", "run"),
        ("--config-file", "base.yml", "run.yml"),
        ("base.yml", "--config-file", "run.yml"),
        ("--local_rank=0", "--deepspeed_config", "ds.json", "--config-file", "base.yml", "run.yml"),
    ):
        assert parse(*argv).training.train_iters == 7
    assert parse("base", "--deepspeed_config", "ds.json").optim.gradient_clipping == 0.25


def test_a_mistake_in_options_is_every_ranks() -> None:
    parser = RankParser(prog="train.py")
    add_config_arguments(parser)
    with pytest.raises(ConfigError, match=r"unrecognized.*\n.*see train\.py --help") as error:
        parser.parse_args(["--confdir", "x"])
    assert error.value.everywhere


def test_options_that_are_keys(base: Path) -> None:
    args = parse("base.yml", "--iteration", "20", "-i", "a b.txt", "--set", "seed=3")
    assert args.checkpointing.iteration == 20
    assert args.textgen.sample_input_file == "a b.txt"
    with pytest.raises(ConfigError, match="sample_input_file is given twice"):
        parse("base.yml", "-i", "x", "--set", "sample-input-file=y")
    with pytest.raises(
        ConfigError, match=r"eval_tasks: found .*: benchmarks are not supported yet"
    ):
        parse("base.yml", "--eval_tasks", "lambada", "piqa")
    with pytest.raises(ConfigError, match="no configuration: name one or more files"):
        parse()


def test_a_secret_is_refused_wherever_it_stands_and_never_shown(base: Path) -> None:
    Path("comet.yml").write_text("comet_others: {api_key: hush}\nwandb-api-key: hush\n")
    found = message("base.yml", "comet.yml", overrides=["deepspeed_extra_args.comet.api_key=hush"])
    assert (
        "comet.yml:1: comet_others.api_key: is a secret: keep it out of files and command" in found
    )
    assert "comet.yml:2: wandb_api_key: is a secret" in found
    assert "command line: deepspeed_extra_args.comet.api_key: is a secret" in found
    assert "hush" not in found


@pytest.mark.parametrize(
    "line",
    [
        "hf_token: hush",
        "aws_secret_access_key: hush",
        "token: hush",
        'host: "https://me:hush@there"',
    ],
)
def test_other_names_and_places_of_secrets(base: Path, line: str) -> None:
    Path("comet.yml").write_text(f"comet_others: {{{line}}}\n")
    found = message("base.yml", "comet.yml")
    assert f"comet_others.{line.split(':')[0]}: is a secret" in found
    assert "hush" not in found


def test_an_address_without_a_password_is_none(base: Path) -> None:
    Path("wandb.yml").write_text("wandb_host: https://me@there:8080/x:y@z\n")
    assert NeoXArgs.from_ymls(["base.yml", "wandb.yml"]).overrides == ()


def test_a_value_that_cannot_be_read_is_one_problem(base: Path) -> None:
    Path("bad.yml").write_text("seed: 010\nextra_save_iters: [1, 02]\nwarmup: !!float 0.1\n")
    lines = message("base.yml", "bad.yml").splitlines()
    assert [line.strip()[:30] for line in lines[1:]] == [
        "bad.yml:1: seed: 010 is ambigu",
        "bad.yml:2: extra_save_iters.1:",
        "bad.yml:3: warmup: tags such a",
    ]


def test_what_gpt_neox_leaves_for_its_users_to_change(base: Path) -> None:
    Path("local.yml").write_text('{"hostfile": "/mock_path", "tokenizer-type": "gpt2bpetokenizer"}')
    Path("base.yml").write_text(yaml.safe_dump(small(tokenizer_type=...)))
    args = NeoXArgs.from_ymls(["base.yml", "local.yml"])
    assert args.launch.hostfile is None
    assert args.tokenizer.tokenizer_type == "GPT2BPETokenizer"
    assert args.notes == ("ignored: hostfile (/mock_path is a placeholder of GPT-NeoX's files)",)
