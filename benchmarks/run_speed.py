"""Time training on this machine, part by part: `uv run python benchmarks/run_speed.py --out speed.json`."""

import sys
from pathlib import Path

from cyclopts import App
from speed import run_speed

from percentmatch.errors import UserError

app = App(name="run_speed")


@app.default
def speed(
    *,
    out: Path = Path("speed.json"),
    parts: str = "network,loop,labeler,cache,evaluation,conventional,methods",
    backbone: str | None = None,
    head: str | None = None,
    image_size: int | None = None,
    labeled_batch: int | None = None,
    steps: int | None = None,
    images: Path | None = None,
    device: str = "auto",
) -> None:
    """Time training on this machine: network, views, whole loop, every method, and a conventional pipeline beside it.

    Parameters
    ----------
    out
        The JSON file of the figures, written after each part; an older one is replaced.
    parts
        What to time, separated by commas.
    backbone
        Any timm model; resnet50 on a GPU and test_resnet on a CPU if not given.
    head
        ml-decoder on a GPU and linear on a CPU if not given.
    image_size
        Side of the square the model sees, in pixels; 224 on a GPU and 40 on a CPU if not given.
    labeled_batch
        Labeled images a step, with as many unlabeled ones; 36 if not given.
    steps
        Steps timed in a row; 50 on a GPU and 3 on a CPU if not given.
    images
        A folder of images to use; without it JPEG files are made up. Labels always are.
    device
        auto, cpu, cuda or cuda:N.
    """
    chosen = [part.strip() for part in parts.split(",")]
    sizes = {"image_size": image_size, "labeled_batch": labeled_batch, "steps": steps}
    found = run_speed(out, parts=chosen, images=images, device=device, backbone=backbone, head=head, **sizes)["parts"]
    print(f"figures  {out}")
    if all("failed" in figures for figures in found.values()):
        raise SystemExit(1)


def main() -> None:
    """Bad input is one sentence and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"run_speed: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
