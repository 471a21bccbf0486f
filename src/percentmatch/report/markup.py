"""HTML that cannot forget to escape: text is escaped, only `Html` made here is not."""

import json
from html import escape

VOID = {"meta", "input", "br", "line", "rect", "circle", "path", "polyline"}


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Html:
    """An element. Children that are not `Html` are escaped; None is left out.

    In names of attributes a last underscore is dropped, others are hyphens. None and False leave an attribute out, True
    only names it.
    """
    written = "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children if child is not None))


def script_json(value: object) -> Html:
    """JSON that may stand inside <script>: no `<`, so that nothing in it can end the script or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Html(text.replace("<", "\\u003c"))


def _name(key: str) -> str:
    return {"view_box": "viewBox"}.get(key, key.rstrip("_").replace("_", "-"))
