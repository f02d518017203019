"""The shell commands of a Markdown page: one for each command of its ```bash blocks."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

# What a block may hold; commands in a block of another kind would not be seen.
LANGUAGES = ("bash", "yaml", "text")
_FENCE = re.compile(r"```(.*)")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)")


@dataclass(frozen=True)
class Command:
    """A command as it stands on a page, its continuation lines and here-document included."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> str:
        """The command with its continuation lines on one line, blanks made one."""
        return " ".join(self.text.replace("\\\n", " ").split())

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.text.splitlines()[0][:60]}"


def commands_of(page: str, root: Path) -> list[Command]:
    """The commands of ``page`` (a path below ``root``) in order.

    Raises:
        AssertionError: a block is of no known language, or is set off by blanks instead of a fence.
    """
    found: list[Command] = []
    language: str | None = None
    pending = ""
    began = 0
    lines = (root / page).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.fullmatch(line)
        if fence and language is None:
            language = fence[1]
            assert language in LANGUAGES, f"{page}:{number}: a block of kind {language!r}"
        elif fence:
            assert not pending, f"{page}:{began}: the command does not end"
            language = None
        elif language is None:
            assert not line.startswith("    "), f"{page}:{number}: put code between ``` lines"
        elif language == "bash":
            if not pending and (not line.strip() or line.startswith("#")):
                continue
            began = began if pending else number
            pending = f"{pending}\n{line}" if pending else line
            if _is_whole(pending):
                found.append(Command(page, began, pending))
                pending = ""
    assert language is None, f"{page}: the last block does not end"
    return found


def _is_whole(text: str) -> bool:
    """Whether a shell would start on ``text`` instead of asking for more lines."""
    heredoc = _HEREDOC.search(text)
    if heredoc:
        return text.splitlines()[-1] == heredoc[1]
    if text.endswith("\\"):
        return False
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False  # a quotation goes on
    return True
