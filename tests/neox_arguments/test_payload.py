"""All ranks run what the launcher has checked."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml

from megatron.errors import ConfigError
from megatron.neox_arguments import NeoXArgs
from megatron.neox_arguments.payload import VARIABLE, check_payload, payload_of
from tests.support.small_config import small


def read(**changes: object) -> NeoXArgs:
    Path("run.yml").write_text(yaml.safe_dump(small(**changes)))
    return NeoXArgs.from_ymls(["run.yml"], ["seed=3"])


def test_the_same_configuration_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args = read()
    check_payload(args, {VARIABLE: payload_of(args)})
    check_payload(args, {})


def test_a_thousand_datasets_fit_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [f"/data/corpora/{'long-name-' * 10}{i:04}_text_document" for i in range(1_000)]
    args = read(data_path=None, train_data_paths=paths, train_label_data_paths=paths)
    assert len(payload_of(args)) < 128 * 1024
    check_payload(args, {VARIABLE: payload_of(args)})


def test_another_one_under_the_same_name_stops_the_rank_and_names_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sent = payload_of(read())
    here = read(train_iters=7, optimizer={"type": "Adam", "params": {"lr": 0.5}})
    with pytest.raises(ConfigError) as error:
        check_payload(here, {VARIABLE: sent})
    lines = str(error.value).splitlines()
    assert lines[0].startswith(
        f"host {socket.gethostname()}: the configuration is not the one that"
    )
    assert "    lr: 0.001 → 0.5" in lines
    assert "    train_iters: 3 → 7" in lines
    assert len(lines) <= 10


def test_many_differences_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sent = payload_of(read())
    keys = ("train_iters", "eval_interval", "eval_iters", "log_interval", "num_workers", "top_k")
    with pytest.raises(ConfigError, match="\n    and 1 more\n"):
        check_payload(read(**dict.fromkeys(keys, 7)), {VARIABLE: sent})


def test_a_payload_for_other_files_is_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    read()
    sent = payload_of(NeoXArgs.from_ymls(["run.yml"]))  # without read's seed=3
    check_payload(read(train_iters=7), {VARIABLE: sent})


def test_what_deepy_has_not_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("{}", "x", "[]"):
        with pytest.raises(
            ConfigError, match=r"MEGATRON_CONFIGURATION is not what deepy\.py writes"
        ):
            check_payload(read(), {VARIABLE: text})
