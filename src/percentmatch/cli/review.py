"""The command that lists and corrects labels that are probably wrong."""

from pathlib import Path

from percentmatch.cli.flags import Device, Moved, RunFolder, read_pairs
from percentmatch.errors import UserError


def review(
    run: RunFolder,
    *,
    out: Path,
    number: int | None = None,
    html: Path | None = None,
    apply: Path | None = None,
    moved: Moved = None,
    device: Device = "auto",
) -> None:
    """List the labels that are probably wrong or missing, or correct them as a filled-in list says.

    Parameters
    ----------
    out
        A new CSV file: the list; with --apply, the corrected labels.
    number
        Number of labels to list; else one in 200, but at least 10 and at most 100.
    html
        Also write a page with the images of the list, a new file that ends in .html.
    apply
        The list with accept or reject in its last column: the accepted corrections are made, in a new file.
    """
    from percentmatch.console.progress import Counting
    from percentmatch.report.review import write_review_page
    from percentmatch.use.review import apply_review, review, show_review, write_review

    for flag, file in (("--out", out), ("--html", html)):
        if file and file.exists():
            raise UserError(f"{flag} {file} is there already; name a new file, or move it away")
    if html and html.resolve() == out.resolve():
        raise UserError(f"--out and --html both name {out}; name two files")
    if html and (apply or html.suffix.lower() not in (".html", ".htm")):
        raise UserError(f"--html {html}: name a file that ends in .html, and leave it out with --apply")
    if apply:
        made, total = apply_review(run, apply, out, moved=read_pairs(moved))
        print(f"{made} of {total} listed labels corrected  {out}")
        return
    with Counting("decoding images") as progress:
        found = review(run, number, device=device, moved=read_pairs(moved), progress=progress)
    show_review(found)
    write_review(found, out)
    print(f"{len(found.suspects)} labels to look at  {out}")
    if html:
        write_review_page(found, html)
        print(f"their images  {html}")
    print(f"write accept or reject into its last column, then: percentmatch review {run} --apply {out} --out FILE")
