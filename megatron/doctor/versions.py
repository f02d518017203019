"""What the hosts would run: interpreter, libraries, this project, the configuration."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypedDict

from megatron.doctor.finding import ByHost, Finding, groups, names
from megatron.launch.plan import ROOT
from megatron.launch.project import project_hash

_PACKAGES: Final = ("torch", "deepspeed", "numpy")
_NCCL: Final = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_DRIVER: Final = Path("/proc/driver/nvidia/version")


class VersionFacts(TypedDict):
    """``found``: version by name, ``none`` where it is missing; ``project``: a hash of all its files."""

    found: dict[str, str]
    project: str
    folder: str
    configuration: str | None
    configuration_error: str | None


def look(
    configuration: str | None, configuration_error: str | None, root: Path = ROOT
) -> VersionFacts:
    """This host; ``configuration`` is the hash of what it reads, or it could not be read."""
    found = {"python": platform.python_version()}
    found |= {name: _version_of(name) for name in _PACKAGES}
    nccl = [_version_of(name) for name in _NCCL]
    found["nccl"] = next((version for version in nccl if version != "none"), "none")
    found["driver"] = _driver()
    return {
        "found": found,
        "project": project_hash(root),
        "folder": str(root),
        "configuration": configuration,
        "configuration_error": configuration_error,
    }


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _driver() -> str:
    try:
        words = _DRIVER.read_text().split("\n", 1)[0].split()
    except OSError:
        return "none"
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def judge(hosts: ByHost[VersionFacts]) -> Iterator[Finding]:
    """Another version of anything on some host; a configuration that some host cannot read."""
    differ = list(_differences(hosts))
    yield from differ
    if not differ:
        found = next(iter(hosts.values()))["found"]
        shown = ", ".join(f"{name} {found[name]}" for name in found if found[name] != "none")
        yield Finding("versions", "ok", shown + _on_all(hosts))
    yield from _judge_project(hosts)
    yield from _judge_configuration(hosts)


def _differences(hosts: ByHost[VersionFacts]) -> Iterator[Finding]:
    for name in dict.fromkeys(name for facts in hosts.values() for name in facts["found"]):
        versions = {host: facts["found"].get(name, "none") for host, facts in hosts.items()}
        if len(groups(versions)) > 1:
            yield Finding(
                "versions",
                # Point releases of the interpreter and drivers of one series get on with each other.
                "warning" if name in ("python", "driver", "numpy") else "error",
                f"{name}: {_who_has_what(versions)}",
                "install the same version everywhere (pip install -r requirements.txt)",
            )


def _judge_project(hosts: ByHost[VersionFacts]) -> Iterator[Finding]:
    hashes = {host: facts["project"] for host, facts in hosts.items()}
    if len(groups(hashes)) == 1:
        text = f"this project: {next(iter(hashes.values()))}{_on_all(hosts)}"
        yield Finding("versions", "ok", text)
        return
    folder = next(iter(hosts.values()))["folder"]
    yield Finding(
        "versions",
        "error",
        f"another version of this project: {_who_has_what(hashes)} in {folder}",
        f"bring all to one commit: git -C {folder} log -1 and git -C {folder} status on each show them",
    )


def _judge_configuration(hosts: ByHost[VersionFacts]) -> Iterator[Finding]:
    for host, facts in hosts.items():
        if facts["configuration_error"] is not None:
            yield Finding(
                "versions",
                "error",
                f"{host}: cannot read the configuration: {facts['configuration_error']}",
                "give every host the same configuration files and the same version of this project",
            )
    read = {
        host: facts["configuration"]
        for host, facts in hosts.items()
        if facts["configuration"] is not None
    }
    if len(groups(read)) > 1:
        yield Finding(
            "versions",
            "error",
            f"another configuration: hash {_who_has_what(read)}",
            "give every host the same configuration files: copy them, or put them on a shared disk",
        )
    elif read:
        text = f"configuration: hash {next(iter(read.values()))}{_on_all(read)}"
        yield Finding("versions", "ok", text)


def _on_all(hosts: ByHost[object]) -> str:
    """``; the same on a and b``; of one host there is nothing to compare with."""
    return f"; the same on {names(list(hosts))}" if len(hosts) > 1 else ""


def _who_has_what(values: ByHost[str]) -> str:
    return "; ".join(f"{value} on {names(hosts)}" for value, hosts in groups(values).items())
