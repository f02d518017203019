"""What the doctor shows: a block for each topic, a line for each finding, the verdict last; or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from megatron.doctor.finding import QUESTIONS, Finding, Question
from megatron.monitor.units import duration_text

TOPICS = (
    "hosts",
    "versions",
    "devices",
    "limits",
    "ports",
    "folders",
    "sharing",
    "data",
    "disks",
    "network",
)
FORMAT_VERSION = 1
STATUS_ERRORS = 2
_GOOD: Mapping[Question, str] = {"data": "the same", "memory": "enough", "speed": "fast enough"}
_BAD: Mapping[Question, str] = {
    "data": "missing or different",
    "memory": "too little",
    "speed": "too slow",
}
_OF_ONE_HOST = {"ok": "there (one host: nothing to compare with)", "error": "missing"}
_DOUBT: Mapping[Question, str] = {"data": "look at", "memory": "tight", "speed": "slow"}
_NAMES: Mapping[Question, str] = {"data": "data", "memory": "memory", "speed": "network and disks"}


def status_of(findings: Sequence[Finding]) -> int:
    """2 with errors; warnings alone are 0."""
    return STATUS_ERRORS if any(finding.level == "error" for finding in findings) else 0


def verdict(findings: Sequence[Finding]) -> dict[Question, str]:
    """An answer to each of the three questions: ``ok``, ``warning``, ``error`` or ``unknown``."""
    answers: dict[Question, str] = {}
    for question in QUESTIONS:
        levels = [finding.level for finding in findings if finding.answers == question]
        worst = [level for level in ("error", "warning", "ok") if level in levels]
        answers[question] = worst[0] if worst else "unknown"
    return answers


def page(title: str, findings: Sequence[Finding], seconds: float, hosts: int) -> str:
    """The page for people, of so many ``hosts`` that came."""
    lines = [title]
    for topic in TOPICS:
        found = [finding for finding in findings if finding.topic == topic]
        if found:
            lines.append(f"  {topic}")
        for finding in found:
            lines.append(f"    {finding.level:<8} {finding.text}")
            if finding.to_do:
                lines.append(f"             to do: {finding.to_do}")
    lines.append(_last_line(findings, seconds, hosts))
    return "\n".join(lines) + "\n"


def _last_line(findings: Sequence[Finding], seconds: float, hosts: int) -> str:
    counts = {
        level: sum(finding.level == level for finding in findings)
        for level in ("ok", "warning", "error")
    }
    words: dict[str, Mapping[Question, str]] = {"ok": _GOOD, "warning": _DOUBT, "error": _BAD}
    if hosts == 1:
        words |= {level: {**words[level], "data": word} for level, word in _OF_ONE_HOST.items()}
    answers = [
        f"{_NAMES[question]}: {words[level][question] if level in words else 'not known'}"
        for question, level in verdict(findings).items()
    ]
    end = "; a run can start" if not counts["error"] else ""
    return (
        f"{counts['ok']} ok, {counts['warning']} warnings, {counts['error']} errors in "
        f"{duration_text(seconds)}; {', '.join(answers)}{end}"
    )


def as_json(
    hosts: Sequence[str], facts: Mapping[str, Any], findings: Sequence[Finding], seconds: float
) -> str:
    """One object::

    version   1; another one when a field changes its meaning
    status    the exit status: 0, or 2 with errors
    hosts     names, node 0 first
    seconds   that it took
    verdict   {"data" | "memory" | "speed": "ok" | "warning" | "error" | "unknown"}
    findings  [{"topic", "level": "ok" | "warning" | "error", "text", "to_do", "answers"}]
    facts     {topic: {host: what was found there}}
    """
    whole = {
        "version": FORMAT_VERSION,
        "status": status_of(findings),
        "hosts": list(hosts),
        "seconds": round(seconds, 1),
        "verdict": verdict(findings),
        "findings": [asdict(finding) for finding in findings],
        "facts": facts,
    }
    return json.dumps(whole, indent=2) + "\n"
