"""Files that a directory owns: links may not lead out of it."""

from __future__ import annotations

from pathlib import Path

from fitkit.errors import BadInput, printable


def own(path: Path, folder: Path) -> Path:
    """`path` itself, a file of `folder`; in the hub's cache a snapshot's files lie in the repository's folder beside it.

    Raises BadInput where it leads elsewhere.
    """
    root = folder.resolve()
    if root.parent.name == "snapshots" and (root.parent.parent / "blobs").is_dir():
        root = root.parent.parent
    try:
        if path.resolve(strict=True).is_relative_to(root):
            return path
    except (OSError, RuntimeError):
        raise BadInput(f"{printable(path.name)} cannot be followed to a file.") from None
    raise BadInput(
        f"{printable(path.name)} leads out of {printable(folder.name)}, where a model's own file was expected."
    )
