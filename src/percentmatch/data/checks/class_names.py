"""Classes that are named like another one, misspelt or written in another way."""

from difflib import SequenceMatcher

from percentmatch.data.checks.findings import Finding, found
from percentmatch.data.manifest import Manifest

RARE = 10  # a name that is so many times rarer than one like it may be a slip
MOST_NAMES, LONGEST_NAME = 2000, 100  # classes, and letters of a name, up to which each is compared with each
ALIKE = 0.8  # the share of letters in common, above which two names are alike


def alike_names(manifest: Manifest) -> list[Finding]:
    """Class names that look like another one misspelt, among at most MOST_NAMES."""
    if len(manifest.class_names) > MOST_NAMES:
        return []
    positives = manifest.labels.targets.in_columns().tolist()
    counts = sorted(zip(positives, manifest.class_names, strict=True))
    plain = {name: "".join(letter for letter in name.casefold() if letter.isalnum()) or name for _, name in counts}
    digits = {name: "".join(filter(str.isdigit, name)) for _, name in counts}
    items = []
    for rank, (few, rare) in enumerate(counts):
        for many, usual in reversed(counts[rank + 1 :]):
            variant = plain[rare] == plain[usual]
            slip = few * RARE <= many and digits[rare] == digits[usual] and _alike(plain[rare], plain[usual])
            if variant or slip:
                why = "differs only in case, spaces or signs from" if variant else "may be a slip for"
                text = f"{rare!r} ({few} images) {why} {usual!r} ({many} images)"
                items.append({"label": rare, "like": usual, "images": few, "text": text})
                break
    return found("class names", "warning", "classes named much like another", items)


def _alike(one: str, other: str) -> bool:
    if sorted(one) == sorted(other):  # two letters changed places
        return True
    if max(len(one), len(other)) > LONGEST_NAME:
        return False
    match = SequenceMatcher(None, one, other, autojunk=False)
    return match.quick_ratio() > ALIKE and match.ratio() > ALIKE
