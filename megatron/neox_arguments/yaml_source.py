"""Strict YAML: plain values, with the file and line of each, and no key that is there twice.

What differs from PyYAML's own loaders:

- a key given twice in one mapping is an error, at any depth; ``-`` and ``_`` are the same letter;
- numbers are numbers: ``1e-4`` is a float (YAML 1.1 takes it for text), ``010`` is refused as
  ambiguous (YAML 1.1: eight), ``12:30`` and dates are text; ``.inf`` and ``.nan`` are read, so that
  the check of the key's type can say that neither is meant;
- ``None`` is null, like ``null`` and ``~``;
- tags, merge keys and values that contain themselves are errors.

JSON is read by the same code: it is a subset once tabs between its tokens are spaces.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.error import MarkedYAMLError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from megatron.neox_arguments.problems import Place, Problems

KeyPath = tuple[str | int, ...]

_INT = re.compile(r"[-+]?[0-9][0-9_]*|[-+]?0x[0-9a-fA-F_]+|[-+]?0o[0-7_]+")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)"
)
_OCTAL_LOOK = re.compile(r"[-+]?0[0-9_]+")
NULLS = frozenset({"", "~", "null", "Null", "NULL", "None"})
# The words that YAML 1.1, and so GPT-NeoX, reads as truth values.
_BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}
# In place of a value that could not be read: its key is left out, so that nothing more is said about it.
_UNREADABLE: Any = object()
# More than any key can take, less than Python's own limit.
_MOST_DIGITS = 1000
_COLON = re.compile(r":(\s|$)")
_TIGHT = re.compile(r"[^\s:#]+:\S")
# What the parser says of the line behind a first key without its colon.
_NOTICED_BEHIND = ("mapping values are not allowed here", "expected '<document start>'")
# Aliases can make a short text stand for an endless one.
_MAX_NODES = 100_000


@dataclass
class Document:
    """One configuration file, read.

    Attributes:
        source: the file as messages name it.
        values: what it says; keys at every depth in their canonical spelling (``_``, never ``-``).
        places: where each key and list item was written.
        texts: how each plain scalar that is no text was written (``1e-4``).
    """

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> Place:
        """Where ``path``, or the nearest thing around it, was written."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(self.source))


def canonical(key: str) -> str:
    """A key in its one spelling: ``train-iters`` is ``train_iters``."""
    return key.strip().replace("-", "_")


def plain_scalar(text: str) -> Any:
    """The value of an unquoted scalar.

    Raises:
        ValueError: it looks like a number but no one can say which.
    """
    if text in NULLS:
        return None
    lower = text.lower()
    if lower in _BOOLS and text in (lower, lower.capitalize(), lower.upper()):
        return _BOOLS[lower]
    if _OCTAL_LOOK.fullmatch(text):
        raise ValueError(
            f"{text} is ambiguous (eight-based in YAML 1.1): write it without the 0 in front"
        )
    if _INT.fullmatch(text):
        if len(text) > _MOST_DIGITS:
            raise ValueError(f"a number of {len(text):,} digits means nothing here")
        return int(text.replace("_", ""), 0)
    if text in (".nan", ".NaN", ".NAN"):
        return math.nan
    if _FLOAT.fullmatch(text):
        return float(
            text.replace("_", "")
            .replace(".inf", "inf")
            .replace(".Inf", "inf")
            .replace(".INF", "inf")
        )
    return text


def read_document(source: str, text: str, problems: Problems) -> Document:
    """Read one file's ``text``; what is wrong with it goes to ``problems``."""
    document = Document(source)
    text = text.removeprefix("\ufeff")
    if source.endswith(".json"):
        text = text.replace("\t", " ")  # JSON holds a tab between tokens only
    try:
        loader = yaml.BaseLoader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
        if root is not None:
            _Builder(document, problems).build_root(root)
    except MarkedYAMLError as error:
        _report_syntax(source, text, error, problems)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problems.add(
            "",
            f"a character that YAML does not allow (code {error.character})",
            Place(source, line),
        )
    except RecursionError:
        problems.add("", "is nested too deeply to be a configuration", Place(source))
    return document


def _report_syntax(source: str, text: str, error: MarkedYAMLError, problems: Problems) -> None:
    """Say where the parser stopped, what stands there, and what most probably is missing."""
    mark = error.problem_mark or error.context_mark
    assert mark is not None, "the reader of a text knows where it is"
    lines = text.splitlines()
    line = _line_without_colon(lines, error)
    if line is not None:
        _report_missing_colon(source, lines, line, problems)
        return
    found = lines[mark.line].strip() if mark.line < len(lines) else "the end of the file"
    hint = ""
    if "expected ',' or" in str(error.problem):
        before = _line_before(lines, mark.line)
        if before is not None and not _without_comment(lines[before]).endswith((",", "{", "[")):
            hint = f"; a comma is probably missing at the end of line {before + 1}"
    context = f"{error.context}: " if error.context else ""
    problems.add(
        "",
        f"column {mark.column + 1}: YAML cannot be read: {context}{error.problem}, at `{found}`{hint}",
        Place(source, mark.line + 1),
    )


def _line_without_colon(lines: list[str], error: MarkedYAMLError) -> int | None:
    """The line, from 0, of a key without its colon, if it is that; the parser notices it in a later one."""
    if error.problem == "could not find expected ':'":
        assert error.context_mark is not None, "it names where the key begins"
        line: int = error.context_mark.line
        return line
    mark = error.problem_mark
    if mark is None or not str(error.problem).startswith(_NOTICED_BEHIND):
        return None
    # The first line of a mapping: that with the next key has been read as more of it.
    before = _line_before(lines, mark.line)
    own = lines[mark.line][: mark.column] if mark.line < len(lines) else ""
    if before is None or lines[before].lstrip().startswith("- ") or _COLON.search(own):
        return None
    return None if _COLON.search(_without_comment(lines[before])) else before


def _report_missing_colon(source: str, lines: list[str], line: int, problems: Problems) -> None:
    found = lines[line].strip()
    hint = "a space is missing behind the ':'" if _TIGHT.match(found) else "write key: value"
    column = lines[line].index(found) + 1
    problems.add(
        "",
        f"column {column}: YAML cannot be read: could not find expected ': ', at `{found}`; {hint}",
        Place(source, line + 1),
    )


def _line_before(lines: list[str], line: int) -> int | None:
    """The last line before ``line``, from 0, that is neither empty nor a comment."""
    before = (n for n in reversed(range(line)) if lines[n].strip())
    return next((n for n in before if not lines[n].strip().startswith("#")), None)


def _without_comment(line: str) -> str:
    return re.sub(r"\s#.*$", "", line).rstrip()


class _Builder:
    """Turns YAML nodes into plain values and remembers where they stood."""

    def __init__(self, document: Document, problems: Problems) -> None:
        self._document = document
        self._problems = problems
        self._open: list[int] = []
        self._count = 0

    def build_root(self, node: Node) -> None:
        if not isinstance(node, MappingNode):
            if not (isinstance(node, ScalarNode) and node.style is None and node.value in NULLS):
                self._report(
                    node, (), "a configuration file holds keys with values, this one does not"
                )
            return
        self._document.values = self._build(node, ())

    def _build(self, node: Node, path: KeyPath) -> Any:
        self._count += 1
        if id(node) in self._open or self._count > _MAX_NODES:
            self._report(node, path, "an alias makes this value endless: write it out")
            return _UNREADABLE
        if node.tag not in _PLAIN_TAGS:
            self._report(node, path, f"tags such as {node.tag} have no meaning here")
            return _UNREADABLE
        self._open.append(id(node))
        value: Any
        if isinstance(node, MappingNode):
            value = self._mapping(node, path)
        elif isinstance(node, SequenceNode):
            value = self._sequence(node, path)
        else:
            assert isinstance(node, ScalarNode)
            value = self._scalar(node, path)
        self._open.pop()
        return value

    def _sequence(self, node: SequenceNode, path: KeyPath) -> Any:
        items: list[Any] = []
        for index, item in enumerate(node.value):
            self._document.places[(*path, index)] = self._place(item)
            items.append(self._build(item, (*path, index)))
        return _UNREADABLE if any(item is _UNREADABLE for item in items) else items

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        spellings: dict[str, str] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode) or key_node.value == "<<":
                what = (
                    "merge keys (<<)"
                    if isinstance(key_node, ScalarNode)
                    else "keys that are no words"
                )
                self._report(key_node, path, f"{what} have no meaning here: write the keys out")
                continue
            key = canonical(key_node.value)
            here = (*path, key)
            if key in spellings:
                first = self._document.places[here]
                spelt = "" if spellings[key] == key_node.value else f" as {spellings[key]}"
                self._report(
                    key_node, here, f"given twice, first on line {first.line}{spelt}: keep one"
                )
                continue
            self._document.places[here] = self._place(key_node)
            spellings[key] = key_node.value
            value = self._build(value_node, here)
            if value is not _UNREADABLE:
                values[key] = value
        return values

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        text: str = node.value
        if node.style is not None:  # quoted, or a block of text
            return text
        try:
            value = plain_scalar(text)
        except ValueError as error:
            self._report(node, path, str(error))
            return _UNREADABLE
        if not isinstance(value, str):
            self._document.texts[path] = text
        return value

    def _place(self, node: Node) -> Place:
        return Place(self._document.source, node.start_mark.line + 1)

    def _report(self, node: Node, path: KeyPath, text: str) -> None:
        self._problems.add(".".join(map(str, path)), text, self._place(node))
