"""Writes docs/api.md from signatures and docstrings: `python benchmarks/api_page.py`."""

import ast
import inspect
import re
import textwrap
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from pydoc import locate
from types import ModuleType
from typing import Any

import percentmatch

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
FACE: dict[str, str] = vars(percentmatch)["_MODULES"]  # name -> module; these come first
SECTIONS: dict[str, tuple[str, ...]] = {  # what is imported from its module
    "Settings": ("settings.views.View", "settings.views.StrongView", "settings.config.DataSettings"),
    "Scoring and exporting": (
        "use.evaluate.score_run",
        "use.evaluate.score_files",
        "use.export.ImageClassifier",
        "scoring.table.score",
        "scoring.table.ScoreTable",
        "scoring.metrics.ClassMetric",
        "scoring.metrics.OverallMetric",
        "scoring.metrics.Ranking",
    ),
    "Data": (
        "data.source.Data",
        "data.pixels.images.Images",
        "data.labels.Labels",
        "data.labels.Flags",
        "data.source.open_data",
        "data.source.load_data",
        "data.manifest.Manifest",
        "data.manifest.join",
        "data.pixels.images.load_images",
        "data.readers.detect.read_labels",
        "data.readers.detect.Reader",
        "data.readers.rows.LabelFile",
        "data.readers.rows.Row",
        "data.readers.rows.each_row",
        "data.readers.table.read_table",
        "data.readers.voc.read_voc",
        "data.readers.coco.read_coco",
        "data.readers.folder.unlabeled_manifest",
        "data.split.Split",
        "data.shards.stream.Stream",
        "data.shards.index.open_shards",
        "data.shards.write.write_shards",
    ),
    "Labelers, in your own loop": (
        "records.Facts",
        "records.Scores",
        "records.PseudoLabels",
        "labelers.base.select",
        "labelers.histogram.ScoreHistogram",
        "distributed.group.StepSums",
        "losses",
    ),
    "Methods": (
        "methods.base.Method",
        "methods.build_method",
        "methods.weak_to_strong.WeakToStrong",
        "methods.Row",
        "records.Batch",
        "records.StepLoss",
    ),
    "Models and heads": ("models.classifier.build_classifier", "models.heads.HEADS", "models.heads.base.Head"),
    "Errors": ("errors.UserError", "errors.Diverged", "console.signals.Stopped"),
}
LINKED = {  # what another page lists
    "Config": "Its fields: [settings](settings.md).",
    "METHODS": "The rows: [all methods](methods/README.md). A new one: [add a method](add-a-method.md).",
    "HEADS": "A new one: [add a head](add-a-head.md).",
}
WIDTH = 100  # letters of a signature on one line


def page() -> str:
    lines = [
        "# Python API",
        "",
        "<!-- written by benchmarks/api_page.py -->",
        "What `import percentmatch` offers; then what is imported from the modules inside.",
    ]
    face = [entry(f"percentmatch.{module}.{name}", came="percentmatch") for name, module in FACE.items()]
    parts = ["\n".join(lines), "## import percentmatch", *face]
    for title, paths in SECTIONS.items():
        parts += [f"## {title}", *(entry(f"percentmatch.{path}") for path in paths)]
    return "\n\n".join(parts) + "\n"


def entry(path: str, came: str = "") -> str:
    """One name: where it is imported from, its signature, its docstring, its fields and methods."""
    module, _, name = path.rpartition(".")
    found: Any = locate(path)
    if found is None:
        raise ValueError(f"there is no {path}")
    line = f"from {came or module} import {name}"
    if isinstance(found, ModuleType):
        tree = ast.parse(inspect.getsource(found))
        parts = [code(line), prose(ast.get_docstring(tree), path), members(tree)]
    elif inspect.isclass(found):
        node = definition(found)
        listed = LINKED.get(name) or fields(found)
        parts = [code(line, *built(found)), prose(ast.get_docstring(node), path), listed, members(node, found)]
    elif inspect.isfunction(found):
        node = definition(found)
        parts = [code(line, "", signature(node)), prose(ast.get_docstring(node), path)]
    else:  # a table
        parts = [code(line), f"A table of {len(found)} names. {LINKED[name]}"]
    return "\n\n".join([f"### {name}", *filter(None, parts)])


def definition(found: Any) -> Any:
    """The syntax tree of a class or a function."""
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(found)))).body[0]


def text_of(node: ast.AST) -> str:
    return ast.unparse(node).replace("'", '"')


def code(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])


def prose(text: str | None, path: str) -> str:
    """A docstring in Markdown: lines `name: text` are parameters."""
    if not text:
        raise ValueError(f"{path} has no docstring")
    joined = re.sub(r"\n {2,}", " ", text)
    return re.sub(r"^([a-z_][a-z_0-9, ]*): ", r"- `\1`: ", joined, flags=re.MULTILINE)


def signature(node: ast.FunctionDef, name: str = "") -> str:
    """As it is written; over several lines if it is long."""
    given = arguments(node.args)
    returned = f" -> {text_of(node.returns)}" if node.returns and not name else ""
    line = f"{name or node.name}({', '.join(given)}){returned}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name or node.name}(", *(f"    {each}," for each in given), f"){returned}"])


def arguments(given: ast.arguments) -> list[str]:
    """Each with its type and default, without `self`."""
    usual = [*given.posonlyargs, *given.args]
    found = list(map(argument, usual, [None] * (len(usual) - len(given.defaults)) + given.defaults))
    found = found[1:] if usual and usual[0].arg in ("self", "cls") else found
    if given.vararg or given.kwonlyargs:
        found.append(f"*{text_of(given.vararg)}" if given.vararg else "*")
    found += map(argument, given.kwonlyargs, given.kw_defaults)
    return [*found, f"**{text_of(given.kwarg)}"] if given.kwarg else found


def argument(given: ast.arg, default: ast.expr | None) -> str:
    equals = " = " if given.annotation else "="
    return text_of(given) + ("" if default is None else f"{equals}{text_of(default)}")


def built(cls: type) -> list[str]:
    """How an object is made, if a class of this package says so and it is not by its fields alone."""
    makers = [vars(each)["__init__"] for each in cls.__mro__ if "__init__" in vars(each)]
    ours = (
        inspect.isfunction(makers[0])
        and makers[0].__module__.startswith("percentmatch")
        and not issubclass(cls, Exception)
    )
    return ["", signature(definition(makers[0]), cls.__name__)] if ours and not is_dataclass(cls) else []


def fields(cls: Any) -> str:
    """The fields of a dataclass, those of the classes below it first: type, default, what is said of them."""
    found = {}
    below: list[Any] = [each for each in reversed(cls.__mro__) if is_dataclass(each)]
    for each in below:
        lines = textwrap.dedent(inspect.getsource(each)).splitlines()
        body: list[Any] = definition(each).body
        for node, following in pairwise([*body, None]):
            if isinstance(node, ast.AnnAssign):
                comment = lines[node.end_lineno - 1][node.end_col_offset :].partition("# ")[2]
                said = text_below(following) or comment
                found[text_of(node.target)] = row(node, " ".join(said.split()))
    return "\n".join(["| field | type | default | |", "|---|---|---|---|", *found.values()]) if found else ""


def text_below(node: Any) -> str:
    """The string that stands by itself below a field."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return str(node.value.value) if is_text else ""


def row(node: Any, said: str) -> str:
    kind = node.annotation.slice.elts[0] if text_of(node.annotation).startswith("Annotated[") else node.annotation
    default = text_of(node.value) if node.value else ""
    if default.startswith("field("):
        given = {each.arg: text_of(each.value) for each in node.value.keywords}
        factory = given.get("default_factory", "")
        default = f"{factory}()" if factory.isidentifier() else given.get("default", "")
    cells = f"`{text_of(node.target)}`", f"`{text_of(kind)}`", default and f"`{default}`", said
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def members(node: Any, cls: type = object) -> str:
    """The public functions in a class or a module; not those of which only a class below says something."""
    below = {name for each in cls.__mro__[1:] if each.__module__.startswith("percentmatch") for name in vars(each)}
    found = []
    for each in node.body:
        if not isinstance(each, ast.FunctionDef) or each.name.startswith("_"):
            continue
        kinds = [text_of(decorator) for decorator in each.decorator_list]
        said = " ".join((ast.get_docstring(each) or "").split())
        if any(kind.endswith(".setter") for kind in kinds) or (each.name in below and not said):
            continue
        given = "" if "property" in kinds else f"({', '.join(arguments(each.args))})"
        returned = f" -> {text_of(each.returns)}" if each.returns else ""
        found.append(f"- `{each.name}{given}{returned}`" + (f": {said}" if said else ""))
    return "\n".join(found)


if __name__ == "__main__":
    PAGE.write_text(page())
