"""Protects that an error about a path says which file and line named it, and about nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from megatron.errors import CheckpointError, DataError
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.path_places import DATA_PATHS, told_where, with_place
from tests.support.small_config import small

PATHS = """\
data_path: null
train_data_paths:
- data/a
- data/a_longer
valid_data_paths: [data/valid, ./data//tidied]
load: ckpt
"""


@pytest.fixture
def args(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NeoXArgs:
    monkeypatch.chdir(tmp_path)
    named = yaml.safe_load(PATHS)
    rest = {key: value for key, value in small().items() if key not in named}
    Path("model.yml").write_text(yaml.safe_dump(rest))
    Path("paths.yml").write_text(PATHS)
    return NeoXArgs.from_ymls(["model.yml", "paths.yml"], ["vocab_file=other.json"])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("data/a.idx: no such file\n  more", "paths.yml:3: train_data_paths: "),
        ("data/a_longer.bin: has 3 bytes", "paths.yml:4: train_data_paths: "),
        ("rank 1 on h: HERE/data/a.idx: cut", "paths.yml:3: train_data_paths: "),
        ("data/tidied.idx: lost", "paths.yml:5: valid_data_paths: "),
        ("data/valid: holds nothing", "paths.yml:5: valid_data_paths: "),
        ("data/a_b.idx: of another", ""),
        ("else/data/a.idx: of another", ""),
        ("out of memory\n  data/a.idx", ""),
        ("ckpt holds no data", ""),  # load is none of the keys that are asked for
    ],
)
def test_the_place_of_the_path_that_is_named(
    args: NeoXArgs, tmp_path: Path, text: str, place: str
) -> None:
    text = text.replace("HERE", str(tmp_path))
    assert with_place(args, text, DATA_PATHS) == place + text


def test_a_key_is_not_said_twice_and_the_command_line_is_a_place(
    args: NeoXArgs, tmp_path: Path
) -> None:
    said = f"load: {tmp_path}/ckpt is a file"
    for who in ("", "rank 0 on h: "):
        assert with_place(args, who + said, ["load"]) == f"paths.yml:6: {who}{said}"
    said = "vocab_file: no such file: other.json"
    assert with_place(args, said, ["vocab_file"]) == f"command line: {said}"
    assert with_place(NeoXArgs.from_dict(small()), "tok.json: lost", ["vocab_file"]) == (
        "tok.json: lost"  # it stands in no file
    )


@pytest.mark.parametrize(
    ("text", "is_about_it"),
    [
        ("data: no such folder", True),
        ("rank 1 on h: data.idx: cut", True),
        ("cannot read data/a.bin", True),
        ("[Errno 5] Input/output error: 'data'", True),
        ("no such file: data", True),
        ("HERE/data is a file", True),
        ("the data holds nothing", False),
        ("no data.", False),
        ("train data: too few tokens", False),
        ("data", True),
        ("data is missing", False),
    ],
)
def test_a_path_that_is_a_plain_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, is_about_it: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yml").write_text(yaml.safe_dump(small(data_path="data"), sort_keys=False))
    args = NeoXArgs.from_ymls(["run.yml"])
    text = text.replace("HERE", str(tmp_path))
    found = with_place(args, text, ["data_path"])
    assert (found != text, found.endswith(text)) == (is_about_it, True)


def test_an_error_stays_what_it_is(args: NeoXArgs) -> None:
    with pytest.raises(DataError) as caught, told_where(args, *DATA_PATHS):
        raise DataError("data/a.idx: lost", everywhere=True)
    assert str(caught.value) == "paths.yml:3: train_data_paths: data/a.idx: lost"
    assert caught.value.everywhere
    with pytest.raises(CheckpointError, match=r"^other$"), told_where(args, "load"):
        raise CheckpointError("other")
