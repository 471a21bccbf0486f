"""What readers of JSON exports share."""

import os
from pathlib import Path

from percentmatch.data.manifest import SUBSET_OF
from percentmatch.errors import UserError

DEEPEST = 32  # folders of a path that are compared


def subset_among(tags: object) -> str:
    """The subset that the tags name, or none."""
    found = {SUBSET_OF.get(str(tag).lower(), "") for tag in tags} - {""} if isinstance(tags, list) else set()
    if len(found) > 1:
        raise UserError(f"its tags name the parts {' and '.join(sorted(found))}; keep one of them")
    return "".join(found)


def nearest(folder: Path, name: str) -> str | None:
    """The longest ending of a path that is a file in `folder`."""
    pieces = [piece for piece in name.replace("\\", "/").split("/") if piece not in ("", ".", "..")][-DEEPEST:]
    endings = ["/".join(pieces[start:]) for start in range(len(pieces))]
    return next((ending for ending in endings if os.path.isfile(folder / ending)), None)
