"""Protects what is sent to the Hub, and what is said where that cannot be. Nothing leaves this machine."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from megatron.conversion.uploading import main
from megatron.errors import CheckpointError
from tests.conversion.hf_models import save_model
from tests.support.doors import door

REPOSITORY = "someone/model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = save_model("llama 4/1", tmp_path_factory.mktemp("hub") / "hf")
    (made / ".cache").mkdir()
    (made / ".cache" / "secret").write_text("stays here")
    return made


class Hub:
    """Stands in for the package, and keeps what it is asked for."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.failure = failure

    def __getattr__(self, name: str) -> Any:
        def ask(*given: Any, **named: Any) -> types.SimpleNamespace:
            self.asked.append((name, given, named))
            if self.failure is not None:
                raise self.failure
            return types.SimpleNamespace(commit_url=f"https://hub/{name}")

        return ask

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        errors = types.SimpleNamespace(HfHubHTTPError=type("HfHubHTTPError", (Exception,), {}))
        package = types.SimpleNamespace(HfApi=lambda: self, errors=errors)
        monkeypatch.setitem(sys.modules, "huggingface_hub", package)


def test_one_commit_of_what_is_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Hub()
    hub.install(monkeypatch)
    main([str(folder), REPOSITORY, "step1000", "--private"])
    said = capsys.readouterr().out
    assert [name for name, _, _ in hub.asked] == ["create_repo", "create_branch", "upload_folder"]
    assert hub.asked[0][2] == {"private": True, "exist_ok": True}
    sent = hub.asked[2][2]
    assert (sent["repo_id"], sent["revision"]) == (REPOSITORY, "step1000")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(sent["allow_patterns"])
    assert all(f"  {name}  " in said for name in sent["allow_patterns"])
    assert "secret" not in said
    assert said.endswith("https://hub/upload_folder\n")


def test_a_dry_run_asks_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    main([str(folder), REPOSITORY, "--dry_run"])
    said = capsys.readouterr().out.splitlines()
    size = (folder / "model.safetensors").stat().st_size
    assert f"  model.safetensors  {size:,} bytes" in said
    assert said[-1].startswith("would send ")
    assert said[-1].endswith(f"to {REPOSITORY}, branch main")


def test_without_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="pip install huggingface_hub"):
        main([str(folder), REPOSITORY])


def test_a_refusal_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hub(PermissionError("403 Forbidden: you have no write token\nmuch more")).install(monkeypatch)
    with pytest.raises(CheckpointError, match="found: 403 Forbidden: you have no write token\n"):
        main([str(folder), REPOSITORY])


def test_a_fault_of_ours_is_not_told_as_the_networks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hub(TypeError("no such argument")).install(monkeypatch)
    with pytest.raises(TypeError, match="no such argument"):
        main([str(folder), REPOSITORY])


def test_without_a_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package, at an address where nobody listens."""
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    with pytest.raises(CheckpointError, match=r"was not sent .*\n  found: .*refused\n"):
        main([str(folder), REPOSITORY])


def test_the_command(folder: Path) -> None:
    done = door("tools/ckpts/upload.py", "hf", REPOSITORY, "--dry_run", folder=folder.parent)
    assert done.status == 0, done.all
    assert "would send" in done.out


def test_folders_that_are_not_sent(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        main([str(tmp_path / "nowhere"), REPOSITORY, "--dry_run"])
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        main([str(tmp_path), REPOSITORY, "--dry_run"])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors nor"):
        main([str(tmp_path), REPOSITORY, "--dry_run"])
    with pytest.raises(CheckpointError, match="expected: OWNER/NAME"):
        main([str(folder), "model", "--dry_run"])
