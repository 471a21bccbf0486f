"""What the PercentMatch labeler costs: results/labeler.json.

`uv run python benchmarks/labeler.py` (half a minute); then `benchmarks/tables.py`
"""

import time

import torch
from tables import ROOT, labeler_table, write_json

from percentmatch.labelers import PercentMatch
from percentmatch.records import Facts, Scores
from percentmatch.run_folder import environment

IMAGES, REPEATS = 36, 50


def step_ms(num_classes: int, num_bins: int, device: torch.device) -> tuple[float, int]:
    """The fastest step in milliseconds, and the bytes of state."""
    positives = torch.full((num_classes,), 5.0, dtype=torch.float64)
    facts = Facts(positives, torch.full_like(positives, 100), 100, 1000, REPEATS)
    labeler = PercentMatch(facts, num_bins=num_bins).to(device)
    batches = torch.rand(REPEATS + 5, IMAGES, num_classes, device=device)
    times = []
    for step, weak in enumerate(batches):
        _wait(device)
        began = time.perf_counter()
        labeler(Scores(weak, torch.full((), step, device=device)))
        _wait(device)
        times.append(time.perf_counter() - began)
    return 1e3 * min(times[5:]), labeler.histogram.mass.nbytes


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)  # else small sizes run on one core and large ones on all
    rows = []
    for num_classes in (20, 80, 1000, 10_000):
        for num_bins in (100, 256):
            ms, state_bytes = step_ms(num_classes, num_bins, device)
            rows.append({"classes": num_classes, "bins": num_bins, "ms": ms, "state_bytes": state_bytes})
    results = {"images": IMAGES, "repeats": REPEATS, **environment(device), "rows": rows}
    write_json(ROOT / "results" / "labeler.json", results)
    print(labeler_table(results))


if __name__ == "__main__":
    main()
