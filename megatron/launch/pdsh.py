"""A start on several hosts over SSH: pdsh starts an agent on each, which starts the ranks there.

First each host is asked, all at once, whether it can take part, and gets its file
(:mod:`megatron.launch.job`). pdsh by itself ends nothing on the other hosts when one fails; here the
ranks notice each other's end (:mod:`megatron.runtime.peers`), and what is left after a while is
stopped by process id.
"""

from __future__ import annotations

import inspect
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Final, NamedTuple

from megatron.errors import LaunchError
from megatron.launch import project
from megatron.launch.job import JOB, folder_of, job_text, stop_text
from megatron.launch.machine import PORT_REMEDY, port_text
from megatron.launch.plan import ROOT, LaunchPlan
from megatron.launch.project import project_version
from megatron.ranks import FIRST_PORT, PORTS
from megatron.runtime import ports
from megatron.runtime.before_torch import LOG_LEVEL

# Connections that are made at a time.
_AT_A_TIME: Final = 32
# Seconds.
_CONNECT: Final = 15
_ANSWER: Final = 60
# So that a lost network ends SSH, and with it pdsh: three unanswered questions.
_ALIVE: Final = ("-oServerAliveInterval=10", "-oServerAliveCountMax=3")
_NO_FOLDER, _NO_PYTHON, _NO_PROJECT, _NO_FILE, _OTHER_PROJECT, _NO_PORT = 71, 72, 73, 74, 75, 76
# Behind the text of a module: its answer is an error's where it is not the one that is wanted.
_COMPARE: Final = """
import sys
found = project_version(Path(sys.argv[1]))
sys.exit(None if found == sys.argv[2] else found)
"""
_TRY_PORT: Final = """
import sys
sys.exit(port_problem(int(sys.argv[1])))
"""
_PORT_PROGRAM: Final = (
    "import random, socket\n"
    f"for port in random.sample(range({FIRST_PORT}, {FIRST_PORT + PORTS}), 100):\n"
    "    try: socket.socket().bind(('', port))\n"
    "    except OSError: continue\n"
    "    print(port); break\n"
)


def pdsh_environment(plan: LaunchPlan, env: Mapping[str, str]) -> dict[str, str]:
    """pdsh's own variables: over SSH, with the user's arguments before ours, so that theirs hold."""
    mine = [*_ALIVE] if plan.asks else ["-oBatchMode=yes", f"-oConnectTimeout={_CONNECT}", *_ALIVE]
    append = " ".join([*filter(None, [env.get("PDSH_SSH_ARGS_APPEND")]), *mine])
    return {**env, "PDSH_RCMD_TYPE": "ssh", "PDSH_SSH_ARGS_APPEND": append}


def pdsh_command(plan: LaunchPlan) -> list[str]:
    """The command that starts an agent on every host; ``%n`` is the host's number."""
    port = "PORT" if plan.port is None else str(plan.port)
    # The agent loads torch before it reads its file.
    level = f"{LOG_LEVEL}={shlex.quote(plan.env[LOG_LEVEL])} " if LOG_LEVEL in plan.env else ""
    agent = (
        f"cd {shlex.quote(plan.cwd)} && {level}PYTHONPATH={shlex.quote(str(ROOT))} exec "
        f"{shlex.quote(sys.executable)} -u -m megatron.launch.agent {folder_of(plan.run_id, '%n')} {port}"
    )
    names = ",".join(share.host for share in plan.hosts)
    return ["pdsh", "-S", "-f", str(len(plan.hosts)), "-w", names, *plan.launcher_args, agent]


def prepare_hosts(plan: LaunchPlan, env: Mapping[str, str]) -> int:
    """Ask every host whether it can take part, and leave its file there.

    Returns:
        The port at which the ranks meet: the one that was asked for, or one that is free on the first
        host.

    Raises:
        LaunchError: hosts cannot take part; names all of them, each with the reason.
    """

    version = project_version(ROOT)

    def prepare(node: int) -> tuple[str, _Refusal | None]:
        text = _preparation(plan, node, version)
        done = _over_ssh(plan, env, node, text, job_text(plan, node))
        return done.stdout, _refusal(plan, node, done, version)

    try:
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            answers = list(pool.map(prepare, range(len(plan.hosts))))
    except (KeyboardInterrupt, SystemExit):
        # The user's secrets are in those files.
        clean_up(plan, env, range(len(plan.hosts)))
        raise
    refusals = {node: refusal for node, (_, refusal) in enumerate(answers) if refusal is not None}
    if refusals:
        clean_up(plan, env, [node for node in range(len(answers)) if node not in refusals])
        raise LaunchError(_refused(plan, refusals))
    if plan.port is not None:
        return plan.port
    return int(answers[0][0].split()[-1])


def signal_hosts(plan: LaunchPlan, env: Mapping[str, str], name: str) -> None:
    """Send a signal to the agent of every host, by its process id; those that have ended are left."""

    def send(node: int) -> None:
        _over_ssh(plan, env, node, stop_text(folder_of(plan.run_id, node), name), "")

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        list(pool.map(send, range(len(plan.hosts))))


def clean_up(plan: LaunchPlan, env: Mapping[str, str], nodes: Sequence[int]) -> None:
    """Remove what may be left of the start on these hosts."""

    def remove(node: int) -> None:
        _over_ssh(plan, env, node, f"rm -rf {folder_of(plan.run_id, node)}", "")

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        list(pool.map(remove, nodes))


def _preparation(plan: LaunchPlan, node: int, version: str) -> str:
    """A shell's lines: what must be there, then the file, and on the first host the port."""
    python, folder = shlex.quote(sys.executable), folder_of(plan.run_id, node)
    lines = [
        f"test -d {shlex.quote(plan.cwd)} || exit {_NO_FOLDER}",
        f"test -x {python} || exit {_NO_PYTHON}",
        f"test -f {shlex.quote(str(ROOT / 'megatron' / 'launch' / 'agent.py'))} || exit {_NO_PROJECT}",
    ]
    if plan.meets:  # else it is the doctor, which looks at these itself, and at more
        compare = _module_command(project, _COMPARE, str(ROOT), version)
        lines.append(f"{compare} || exit {_OTHER_PROJECT}")
        if node == 0 and plan.port is not None:
            lines.append(f"{_module_command(ports, _TRY_PORT, str(plan.port))} || exit {_NO_PORT}")
    lines.append(f"umask 077; mkdir {folder} && cat > {folder}/{JOB} || exit {_NO_FILE}")
    if node == 0 and plan.port is None:
        lines.append(f"{python} -I -S -c {shlex.quote(_PORT_PROGRAM)}")
    return "\n".join(lines)


def _module_command(module: ModuleType, end: str, *arguments: str) -> str:
    """A shell's command that runs the text of a module of ours, as it is here, and ``end`` behind it."""
    words = [sys.executable, "-I", "-S", "-c", inspect.getsource(module) + end, *arguments]
    return shlex.join(words) + " </dev/null"


def _over_ssh(
    plan: LaunchPlan, env: Mapping[str, str], node: int, text: str, given: str
) -> subprocess.CompletedProcess[str]:
    """Run a shell's text on a host with ``given`` as its input, as pdsh would reach it."""
    host = plan.hosts[node].host
    append = shlex.split(pdsh_environment(plan, env)["PDSH_SSH_ARGS_APPEND"])
    named = env.get("PDSH_SSH_ARGS")
    args = shlex.split(named.replace("%h", host)) if named else ["-a", "-x", host]
    # Options before the host's name.
    command = ["ssh", *append, *args, "exec /bin/sh -c " + shlex.quote(text)]
    try:
        return subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=None if plan.asks else _ANSWER,
            env=dict(env),
            start_new_session=not plan.asks,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 255, "", f"no answer within {_ANSWER} s")
    except FileNotFoundError:
        raise LaunchError(
            "launcher: pdsh: ssh is not installed here\n  to do: install it"
        ) from None


class _Refusal(NamedTuple):
    """Why a host cannot take part, and what to do where it is more than to mend or leave it."""

    reason: str
    remedy: str | None = None


def _refused(plan: LaunchPlan, refusals: Mapping[int, _Refusal]) -> str:
    """The message about hosts that cannot take part, by number."""
    usual = (
        "mend them, or leave them out (exclude); each must be reached by `ssh HOST` without "
        "a question (no_ssh_check: true lets it ask), with the same paths as here"
    )
    lines = [f"  {plan.hosts[node].host}: {each.reason}" for node, each in refusals.items()]
    remedies = dict.fromkeys(each.remedy or usual for each in refusals.values())
    one = plan.hosts[next(iter(refusals))].host if len(refusals) == 1 else "HOST"
    return "\n".join(
        [
            f"{len(refusals)} of {len(plan.hosts)} hosts cannot take part; nothing was started",
            *lines[:20],
            *(f"  to do: {remedy.replace('{host}', one)}" for remedy in remedies),
        ]
    )


def _refusal(
    plan: LaunchPlan, node: int, done: subprocess.CompletedProcess[str], version: str
) -> _Refusal | None:
    """Why a host cannot take part; None if it can."""
    status, said = done.returncode, done.stderr.strip()
    if status == 0:
        return None
    words, last = " ".join(said.split())[-200:], said.rpartition("\n")[2]
    if status == _OTHER_PROJECT:
        root = shlex.quote(str(ROOT))
        return _Refusal(
            f"another version of this project in {ROOT}: {last} there, {version} on "
            f"{socket.gethostname()} (here)",
            f"copy this one there (rsync -a --delete {root}/megatron {root}/*.py {{host}}:{root}/), or bring "
            "both to one commit",
        )
    if status == _NO_PORT:
        return _Refusal(port_text(plan.port or 0, last), PORT_REMEDY)
    known = {
        _NO_FOLDER: f"there is no folder {plan.cwd}",
        _NO_PYTHON: f"there is no {sys.executable}",
        _NO_PROJECT: f"this project is not in {ROOT}",
        _NO_FILE: f"its folder for temporary files cannot be written: {words}",
        255: f"ssh: {words.removeprefix('ssh: ') or 'cannot connect'}",
    }
    return _Refusal(known.get(status, f"status {status}: {words}"))
