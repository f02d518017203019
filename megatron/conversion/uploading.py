"""Push a folder that transformers loads to the Hugging Face Hub, in one commit.

The token is the one that `hf auth login` or HF_TOKEN has left; it is never an argument. With --dry_run
nothing is sent: it says what would be.

example:
  python tools/ckpts/upload.py hf/mine my-name/my-model main --dry_run
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron.conversion.hf_folder import CONFIG_NAME, TensorFolder, read_json
from megatron.errors import CheckpointError

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line of ``tools/ckpts/upload.py``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="as convert_neox_to_hf.py writes it")
    add("repository", metavar="OWNER/NAME", help="made when it is not there")
    add("branch", nargs="?", default="main", metavar="BRANCH", help="default: main")
    add("--private", action="store_true", help="a repository that is made is not public")
    add("--message", default="Upload the model", metavar="TEXT", help="of the commit")
    add("--dry_run", "--dry-run", action="store_true", help="only say what would be sent")
    parsed = parser.parse_args(argv)
    if not _REPOSITORY.fullmatch(parsed.repository):
        raise CheckpointError(
            f"repository\n  found: {parsed.repository}\n  expected: OWNER/NAME, such as my-name/my-model"
        )
    folder = Path(parsed.folder)
    files = files_of(folder)
    for name, size in files.items():
        sys.stdout.write(f"  {name}  {size:,} bytes\n")
    what = (
        f"{len(files)} files, {sum(files.values()):,} bytes, from {folder} to {parsed.repository}, "
        f"branch {parsed.branch}"
    )
    if parsed.dry_run:
        sys.stdout.write(f"would send {what}\n")
        return
    address = _send(folder, list(files), parsed)
    sys.stdout.write(f"sent {what}\n{address}\n")


def files_of(folder: Path) -> dict[str, int]:
    """What is sent of ``folder``: names in it and bytes. Hidden files stay here.

    Raises:
        CheckpointError: it is no whole folder of transformers'.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    read_json(folder / CONFIG_NAME)
    TensorFolder(folder)  # all files that its index names are there and whole
    inside = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    return {
        name: path.stat().st_size
        for name, path in sorted(inside.items())
        if not any(part.startswith(".") for part in name.split("/"))
    }


def _send(folder: Path, files: list[str], wishes: argparse.Namespace) -> str:
    """Make repository and branch where they are not there, and commit. Returns the commit's address."""
    hub = _hub()
    api = hub.HfApi()
    repository, branch = wishes.repository, wishes.branch
    try:
        api.create_repo(repository, private=wishes.private, exist_ok=True)
        if branch != "main":
            api.create_branch(repository, branch=branch, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository,
            folder_path=str(folder),
            revision=branch,
            allow_patterns=[re.sub(r"([*?[])", r"[\1]", name) for name in files],
            commit_message=wishes.message,
        )
    except _failures(hub) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise CheckpointError(
            f"{folder} was not sent to {repository}\n  found: {lines[0]}\n"
            "  to do: look at the network (HF_ENDPOINT, HF_HUB_OFFLINE, proxies), and whether the token of "
            "`hf auth login` or HF_TOKEN may write there; --dry_run needs neither"
        ) from error
    return str(getattr(done, "commit_url", done))


def _hub() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise CheckpointError(
            "huggingface_hub is not installed\n  to do: pip install huggingface_hub"
        ) from error


def _failures(hub: Any) -> tuple[type[Exception], ...]:
    """What the package raises for a network, a token or a name that will not do.

    Which client it speaks through changes with its releases; its own error is one of that client's.
    """
    kinds: tuple[type, ...] = hub.errors.HfHubHTTPError.__mro__
    of_client = [kind for kind in kinds if issubclass(kind, Exception) and kind is not Exception]
    return (OSError, ValueError, *of_client)
