"""Protects the Dockerfile, which no test can build: hadolint reads it, its steps are tried one by one."""

from __future__ import annotations

import fnmatch
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Instruction and arguments of each, with lines joined and comments left out."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.M)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]


def arguments(instruction: str) -> list[str]:
    return [rest for word, rest in instructions() if word == instruction]


def is_ignored(path: str) -> bool:
    """Whether ``.dockerignore`` keeps a path out: the last pattern that matches it, or a folder above it."""
    parts = Path(path).parts
    above = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        anywhere = pattern.removeprefix("**/")
        if any(
            fnmatch.fnmatch(place, pattern) and place.count("/") == pattern.count("/")
            if anywhere == pattern
            else fnmatch.fnmatch(Path(place).name, anywhere)
            for place in above
        ):
            ignored = not line.startswith("!")
    return ignored


def test_hadolint_has_nothing_to_say() -> None:
    linter = Path(sys.prefix) / "bin" / "hadolint"
    if not linter.exists():
        pytest.skip("no hadolint here: pip install -r tests/requirements.txt")
    done = subprocess.run(
        [linter, "--no-color", "--failure-threshold", "style", DOCKERFILE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_what_it_builds_on_has_a_version() -> None:
    (image,) = arguments("FROM")
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", image)


def test_packages_are_those_of_the_requirements() -> None:
    (install,) = (rest for rest in arguments("RUN") if "pip install" in rest)
    words = shlex.split(install.partition("pip install")[2])
    assert words == ["--no-cache-dir", "$@", "-r", "/tmp/requirements.txt"]
    assert arguments("COPY")[0] == "requirements.txt /tmp/"


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("cuda", "--no-cache-dir -r /tmp/requirements.txt"),
        ("cpu", "--no-cache-dir --extra-index-url INDEX -r /tmp/requirements.txt"),
    ],
)
def test_each_variant_installs(variant: str, said: str, tmp_path: Path) -> None:
    done = run_install(variant, tmp_path)
    assert (done.returncode, done.stdout) == (0, f"install {said}\n")


def test_a_variant_that_there_is_not_stops_the_build(tmp_path: Path) -> None:
    done = run_install("gpu", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "VARIANT is gpu; expected cuda or cpu" in done.stderr


def run_install(variant: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the Dockerfile's own step, with a pip that only says what it is asked for."""
    pip = folder / "pip"
    pip.write_text('#!/bin/sh\necho "$@"\n')
    pip.chmod(0o755)
    (install,) = (rest for rest in arguments("RUN") if "pip install" in rest)
    env = {"PATH": f"{folder}:/usr/bin:/bin", "VARIANT": variant, "CPU_INDEX": "INDEX"}
    return subprocess.run(
        ["/bin/sh", "-c", install], env=env, capture_output=True, text=True, check=False
    )


def test_no_lists_and_no_host_keys_stay_in_a_layer() -> None:
    (system,) = (rest for rest in arguments("RUN") if "apt-get install" in rest)
    assert "--no-install-recommends" in system
    assert "rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*" in system


def test_it_does_not_run_as_root() -> None:
    words = [word for word, _ in instructions()]
    assert arguments("USER") == ["$USER_ID"]
    assert words.index("USER") > max(place for place, word in enumerate(words) if word == "RUN")


def test_what_runs_goes_in_and_nothing_else() -> None:
    for copied in ("requirements.txt", "train.py", "deepy.py", "eval.py", "generate.py"):
        assert (ROOT / copied).exists()
        assert not is_ignored(copied)
    for folder in ("megatron", "configs", "tools"):
        assert (ROOT / folder).is_dir()
        assert not is_ignored(f"{folder}/x.py")
        assert is_ignored(f"{folder}/__pycache__/x.pyc")
        assert is_ignored(f"{folder}/deep/er/__pycache__")
    for other in (".git/config", ".venv/bin/python", "data/x.bin", "checkpoints/latest", "id_rsa"):
        assert is_ignored(other)
