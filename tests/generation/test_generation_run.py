"""The three kinds of generation, the files they read and write, and the ranks they run on."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatron.errors import ConfigError, DataError
from megatron.generation import run as run_module
from megatron.generation import run_generation
from megatron.generation.engine import Sample, generate
from megatron.generation.files import open_output, read_prompts, write_sample
from megatron.generation.run import converse
from megatron.mpu import ParallelGroups
from megatron.neox_arguments.sections import TextgenArgs
from megatron.runtime.world import World
from megatron.tokenizer.char_level import CharLevelTokenizer
from tests.support.models import SINGLE, tiny_model
from tests.support.ranks import run_ranks


def small_model(groups: ParallelGroups = SINGLE) -> Any:
    return tiny_model(
        512, groups=groups, max_position_embeddings=64, init_method="small_init", hidden_size=64
    )


def arguments(**settings: Any) -> Any:
    textgen = TextgenArgs(**{"maximum_tokens": 6, "temperature": 1.0, **settings})
    return SimpleNamespace(textgen=textgen, training=SimpleNamespace(seed=5))


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_from_a_file(tmp_path: Path) -> None:
    prompts, output = tmp_path / "prompts.txt", tmp_path / "new" / "out.jsonl"
    prompts.write_text("O Romeo\n\n  thou art \n")
    args = arguments(
        text_gen_type="input-file",
        sample_input_file=str(prompts),
        sample_output_file=str(output),
        num_samples=2,
    )
    run_generation(args, small_model(), CharLevelTokenizer(), World())
    got = records(output)
    assert [r["context"] for r in got] == ["O Romeo", "O Romeo", "thou art", "thou art"]
    assert got[0]["text"] != got[1]["text"]
    assert list(got[0]) == ["context", "text", "length", "finished", "message", "duration_seconds"]
    direct = generate(
        small_model(),
        CharLevelTokenizer(),
        [r["context"] for r in got],
        args.textgen,
        seed=5,
        device=torch.device("cpu"),
    )
    assert [r["text"] for r in got] == [sample.text for sample in direct]
    assert [p.name for p in output.parent.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("kind", ["unconditional", None])
def test_unconditional(tmp_path: Path, kind: str | None) -> None:
    output = tmp_path / "samples.txt"
    args = arguments(text_gen_type=kind, sample_output_file=str(output), num_samples=3)
    run_generation(args, small_model(), CharLevelTokenizer(), World())
    got = records(output)
    assert [r["context"] for r in got] == ["", "", ""]
    assert len({r["text"] for r in got}) == 3


@pytest.mark.parametrize("given", [None, "prompts.txt"])
def test_samples_from_nothing_have_a_place_where_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    args = arguments(
        text_gen_type="unconditional", sample_output_file=None, sample_input_file=given
    )
    run_generation(args, small_model(), CharLevelTokenizer(), World())
    assert [path.name for path in tmp_path.iterdir()] == ["samples.txt"]


def test_samples_lie_beside_their_prompts_where_no_place_is_given(tmp_path: Path) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_bytes(b"\xef\xbb\xbfwritten by an editor that marks its files\r\n")
    args = arguments(sample_input_file=str(prompts), sample_output_file=None)
    run_generation(args, small_model(), CharLevelTokenizer(), World())
    (record,) = records(tmp_path / "p.txt.output.jsonl")
    assert record["context"] == "written by an editor that marks its files"


def test_the_door_to_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    target = io.StringIO()
    monkeypatch.setattr("sys.stdin", io.StringIO("thou"))
    monkeypatch.setattr("sys.stdout", target)
    args = arguments(text_gen_type="interactive")
    run_generation(args, small_model(), CharLevelTokenizer(), World())
    assert target.getvalue().startswith("Context prompt >>> Generated text: ")


def test_an_input_file_alone_means_from_a_file(tmp_path: Path) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text("only this")
    output = str(tmp_path / "out")
    args = arguments(sample_input_file=str(prompts), sample_output_file=output)
    run_generation(args, small_model(), CharLevelTokenizer(), World())
    assert [r["context"] for r in records(tmp_path / "out")] == ["only this"]


def test_interactive() -> None:
    target = io.StringIO()
    converse(
        small_model(),
        CharLevelTokenizer(),
        TextgenArgs(maximum_tokens=3),
        5,
        World(),
        io.StringIO("thou art\nO\n"),
        target,
    )
    blocks = target.getvalue().split("Context prompt >>> ")
    assert len(blocks) == 4
    assert blocks[1].startswith("Generated text: ")
    assert blocks[3] == "\n"


@pytest.mark.parametrize(
    ("end", "typed", "expected"),
    [
        ("\n", "a b\nc\n", ["a b", "c"]),
        ("\n", "a\nlast", ["a", "last"]),
        ("##", "one\ntwo##\nthree##\n", ["one\ntwo", "three"]),
        ("\n\n", "one\ntwo\n\nthree\n\n", ["one\ntwo", "three"]),
        ("\n", "", []),
    ],
)
def test_where_a_typed_prompt_ends(
    monkeypatch: pytest.MonkeyPatch, end: str, typed: str, expected: list[str]
) -> None:
    seen: list[str] = []

    def record(model: Any, tokenizer: Any, prompts: list[str], *args: Any, **kwargs: Any) -> Any:
        seen.extend(prompts)
        return iter([Sample(prompts[0], "", 0, False, None, 0.0)])

    monkeypatch.setattr(run_module, "generate", record)
    settings = TextgenArgs(prompt_end=end)
    converse(
        small_model(),
        CharLevelTokenizer(),
        settings,
        5,
        World(),
        io.StringIO(typed),
        io.StringIO(),
    )
    assert seen == expected


def test_input_file_needs_a_file() -> None:
    with pytest.raises(ConfigError, match="needs sample_input_file"):
        run_generation(
            arguments(text_gen_type="input-file"), small_model(), CharLevelTokenizer(), World()
        )


def test_missing_empty_and_binary_prompt_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt: cannot read the prompts: No such file"):
        read_prompts(tmp_path / "none.txt")
    blank, binary = tmp_path / "blank.txt", tmp_path / "binary.txt"
    blank.write_text("\n  \n")
    with pytest.raises(DataError, match=r"blank\.txt: 0 prompts"):
        read_prompts(blank)
    binary.write_bytes(b"ab\xff")
    with pytest.raises(DataError, match=r"binary\.txt: byte 2 is not UTF-8"):
        read_prompts(binary)


def test_prompts_end_at_line_ends_alone(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("a\u2028b\x0bc\nd\r\n", encoding="utf-8")
    assert read_prompts(path) == ["a\u2028b\x0bc", "d"]


def test_output_appears_only_when_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("earlier\n")
    sample = Sample("c", "té\n", 2, True, None, 0.5, logits=[[1.0], [2.0]])
    with pytest.raises(RuntimeError), open_output(path) as file:  # noqa: PT012
        write_sample(file, sample)
        raise RuntimeError
    assert path.read_text() == "earlier\n"
    with open_output(path) as file:
        write_sample(file, sample)
    assert records(path) == [
        {
            "context": "c",
            "text": "té\n",
            "length": 2,
            "finished": True,
            "message": None,
            "duration_seconds": 0.5,
            "logits": [[1.0], [2.0]],
        }
    ]


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = open_output(tmp_path / "file" / "out.jsonl")
    with (
        pytest.raises(DataError, match=r"cannot write the samples.*\n.*sample_output_file"),
        output,
    ):
        pass


def on_ranks(world: World, folder: str, model_parallel_size: int) -> None:
    groups = ParallelGroups(world, model_parallel_size=model_parallel_size)
    args = arguments(
        sample_input_file=f"{folder}/prompts.txt",
        sample_output_file=f"{folder}/out{model_parallel_size}.jsonl",
    )
    run_generation(args, small_model(groups), CharLevelTokenizer(), world)


def missing_on_ranks(world: World, folder: str) -> tuple[str, bool]:
    args = arguments(sample_input_file=f"{folder}/none.txt", sample_output_file=f"{folder}/x")
    try:
        run_generation(args, small_model(ParallelGroups(world)), CharLevelTokenizer(), world)
    except DataError as error:
        return str(error), error.everywhere
    return "", False


def both(world: World, folder: str) -> tuple[str, bool]:
    on_ranks(world, folder, 1)
    on_ranks(world, folder, 2)
    return missing_on_ranks(world, folder)


@pytest.mark.ranks
def test_ranks_share_the_work_and_give_what_one_process_gives(tmp_path: Path) -> None:
    prompts = [f"prompt {i}" for i in range(35)]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    errors = run_ranks(2, both, str(tmp_path))
    output = str(tmp_path / "one")
    args = arguments(sample_input_file=str(tmp_path / "prompts.txt"), sample_output_file=output)
    run_generation(args, small_model(), CharLevelTokenizer(), World())
    expected = [r["text"] for r in records(tmp_path / "one")]
    for size in (1, 2):
        got = records(tmp_path / f"out{size}.jsonl")
        assert [r["context"] for r in got] == prompts
        assert [r["text"] for r in got] == expected
    assert errors[0] == errors[1]
    assert "No such file" in errors[0][0]
    assert errors[0][1] is True
