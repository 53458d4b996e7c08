"""Finding documents: by path, or by name among those that come with the package."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from perfmodel.base.errors import TopologyError

CATALOG = Path(__file__).parent / "catalog"
DEVICES = Path(__file__).parent / "devices"


def list_documents(folder: Path) -> tuple[str, ...]:
    """Names of the documents in *folder*, in order."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def find_document(name_or_path: str | Path, *, folder: Path, what: str) -> Path:
    """The file that *name_or_path* means: a path that exists, else a name in *folder*."""
    path = Path(name_or_path)
    if str(name_or_path).strip() and _exists(path):
        return path
    if path.name == str(name_or_path):
        stem = path.name.removesuffix(".yaml").removesuffix(".yml")
        known = list_documents(folder)
        if stem in known:
            return folder / f"{stem}.yaml"
        near = get_close_matches(stem, known, n=3, cutoff=0.5)
        hint = f"Near: {', '.join(near)}." if near else f"Known: {', '.join(known)}."
    else:
        hint = "Check the path."
    raise TopologyError(
        f"{what} {str(name_or_path)!r}: must be a file or a known name, but is neither. {hint}"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a zero byte in it
        return False
