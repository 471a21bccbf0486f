"""Join the results.json files of one grid, run in parts, into a results file.

    collect.py FILE "the copy of the photographs" PART [PART ...]

A run that is in several parts is taken from the last.
"""

import json
import sys
from pathlib import Path

from tables import write_json


def main(file: Path, photographs: str, *parts: Path) -> None:
    runs = {}
    for part in [*([file] if file.exists() else []), *parts]:
        for run in json.loads(part.read_text())["runs"]:
            for place in ("root", "weights"):  # of the machine it ran on
                run["settings"][place] = Path(run["settings"][place]).name
            runs[run["group"], run["seed"]] = run
    write_json(file, {"photographs": photographs, "runs": [runs[key] for key in sorted(runs)]})
    print(f"{len(runs)} runs in {file}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(Path, sys.argv[3:]))
