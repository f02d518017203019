"""Finding and reading configuration files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from megatron.neox_arguments.problems import Place, Problems, closest
from megatron.neox_arguments.yaml_source import Document, read_document

SUFFIXES = (".yml", ".yaml", ".json")
# A configuration is a page or two; a token file given by mistake must not be read whole.
_MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class ConfigFile:
    """A file that a configuration was read from: as it was named, and what stood in it."""

    path: str
    text: str


def resolve(name: str | Path, conf_dir: str | Path | None) -> Path | None:
    """The file that ``name`` means: as it stands or with an ending, in ``conf_dir`` first, or here."""
    folders = [Path()] if conf_dir is None or Path(name).is_absolute() else [Path(conf_dir), Path()]
    for folder in folders:
        whole = folder / name
        if not whole.name:
            continue  # a folder, such as "." and "/"
        for candidate in (whole, *(whole.with_name(whole.name + suffix) for suffix in SUFFIXES)):
            if candidate.is_file():
                return candidate
    return None


def read_files(
    names: Iterable[str | Path], conf_dir: str | Path | None, problems: Problems
) -> tuple[list[ConfigFile], list[Document]]:
    """Read configuration files; what cannot be found or read goes to ``problems``."""
    files: list[ConfigFile] = []
    documents: list[Document] = []
    seen: dict[Path, str] = {}
    for name in names:
        path = resolve(name, conf_dir)
        problems.expect(str(path or name))
        if path is None:
            problems.add("", _missing(name, conf_dir), Place(str(name)))
            continue
        if path.resolve() in seen:
            problems.add("", "is named twice on the command line: name it once", Place(str(path)))
            continue
        seen[path.resolve()] = str(path)
        text = _read_text(path, problems)
        if text is not None:
            files.append(ConfigFile(str(path), text))
            documents.append(read_document(str(path), text, problems))
    return files, documents


def _read_text(path: Path, problems: Problems) -> str | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            problems.add(
                "", "is too large to be a configuration file (over 4 MiB)", Place(str(path))
            )
            return None
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        problems.add("", f"is no UTF-8 text (byte {error.start})", Place(str(path)))
    except OSError as error:
        problems.add("", f"cannot be read: {error.strerror}", Place(str(path)))
    return None


def _missing(name: str | Path, conf_dir: str | Path | None) -> str:
    folder = (Path(conf_dir or ".") / name).parent
    where = f" in {folder.resolve()}"
    if not folder.is_dir():
        return f"no such configuration file: {folder.resolve()} is no folder"
    stems = {p.stem: p for p in sorted(folder.iterdir()) if p.suffix in SUFFIXES}
    lower = {stem.lower(): stem for stem in stems}
    meant = closest(Path(name).stem.lower(), lower)
    hint = f"; did you mean {stems[lower[meant]]}?" if meant else ""
    return f"no such configuration file{where}{hint}"
