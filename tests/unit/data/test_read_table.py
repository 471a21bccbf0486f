"""CSV files as people bring them: two layouts, many spellings, one sentence for each mistake."""

import csv
import os
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from percentmatch.data.manifest import Manifest
from percentmatch.data.readers import folder as disk
from percentmatch.data.readers.table import read_table
from percentmatch.errors import UserError

IMAGES = ("a.jpg", "b.JPG", "c d.png", "größe, neu.webp", "sub/e.avif")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    for name in IMAGES:
        (tmp_path / name).touch()
    return tmp_path


def read(folder: Path, text: str | bytes, **options) -> Manifest:
    (folder / "labels.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_table(folder / "labels.csv", **options)


def positives(manifest: Manifest) -> dict[str, set[str]]:
    """The positive classes of each image."""
    rows = zip(manifest.ids, manifest.labels.targets.dense().tolist(), strict=True)
    return {name: {manifest.class_names[i] for i, one in enumerate(row) if one} for name, row in rows}


def test_labels_in_a_cell(folder: Path) -> None:
    """An empty cell means no class at all, and is known."""
    rows = "a.jpg,dog;cat,train\nb.JPG,,val\nc d.png, cat ;cat;,TEST\nsub/e.avif,dog,\n"
    manifest = read(folder, f"image,labels,split\n{rows}")
    assert manifest.class_names == ("cat", "dog")
    assert positives(manifest) == {"a.jpg": {"cat", "dog"}, "b.JPG": set(), "c d.png": {"cat"}, "sub/e.avif": {"dog"}}
    assert manifest.labels.known.dense().all()
    assert not manifest.labels.difficult.dense().any()
    assert manifest.parts == ("train", "validation", "test", "")
    assert manifest.paths[3] == folder / "sub" / "e.avif"
    assert manifest.sources[2] == f"{folder / 'labels.csv'}, line 4"


def test_one_hot(folder: Path) -> None:
    """Columns keep their order; nothing, ? and -1 mean unknown; pandas writes 1.0, True and a column of row numbers."""
    manifest = read(folder, ",image,dog,cat\n0,a.jpg,1,0\n1,b.JPG,,?\n2,c d.png,1.0,-1\n3,sub/e.avif,False, TRUE\n")
    assert manifest.class_names == ("dog", "cat")
    assert manifest.labels.known.dense().tolist() == [[1, 1], [0, 0], [1, 0], [1, 1]]
    assert manifest.labels.targets.dense().tolist() == [[1, 0], [0, 0], [1, 0], [0, 1]]


def test_given_classes_set_the_order_and_a_missing_column_is_unknown(folder: Path) -> None:
    manifest = read(folder, "image,labels\na.jpg,cat\n", classes=["dog", "cat"])
    assert manifest.labels.targets.dense().tolist() == [[0, 1]]
    manifest = read(folder, "image,cat,dog\na.jpg,1,0\n", classes=("dog", "cow", "cat"))
    assert (manifest.labels.targets.dense().tolist(), manifest.labels.known.dense().tolist()) == (
        [[0, 0, 1]],
        [[1, 0, 1]],
    )


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (("cat;dog", "traffic light"), ({"cat", "dog"}, {"traffic light"})),
        (("cat|dog", "traffic light, red"), ({"cat", "dog"}, {"traffic light, red"})),
        (('"cat, dog"', "traffic light"), ({"cat", "dog"}, {"traffic light"})),
        (("cat dog", "cow"), ({"cat", "dog"}, {"cow"})),
    ],
)
def test_one_separator_holds_for_the_whole_file(folder: Path, cells: tuple[str, str], wanted: tuple) -> None:
    quoted = [cell if cell[0] == '"' else f'"{cell}"' for cell in cells]
    manifest = read(folder, f"image,labels\na.jpg,{quoted[0]}\nb.JPG,{quoted[1]}\n")
    assert tuple(positives(manifest).values()) == wanted


def test_a_cell_that_is_a_given_class_is_not_divided(folder: Path) -> None:
    manifest = read(folder, "image,label\na.jpg,hot dog\nb.JPG,cat hot\n", classes=["hot dog", "hot", "cat"])
    assert positives(manifest) == {"a.jpg": {"hot dog"}, "b.JPG": {"hot", "cat"}}


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_spellings_of_the_same_table(folder: Path, bom: str, end: str, mark: str) -> None:
    """Delimiters, line ends, blank lines, quotes, Windows paths, case and coding of names: one result."""
    rows = [("File Name", "Tags"), (".\\A.jpg", "cat|dog"), (), ("b.jpg", ""), ('"größe, neu.webp"', "dog")]
    rows += [("gro\u0308ße, NEU.webp".join('""'), "dog"), ("sub\\e.AVIF", "cat"), (str(folder / "c d.png"), " dog ")]
    manifest = read(folder, bom + end.join(mark.join(row) for row in rows) + end)
    wanted = {"a.jpg": {"cat", "dog"}, "b.JPG": set(), "größe, neu.webp": {"dog"}, "sub/e.avif": {"cat"}}
    assert positives(manifest) == wanted | {"c d.png": {"dog"}}
    assert all(path.is_file() for path in manifest.paths)


def test_two_paths_to_one_file_are_one_image(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(folder / "sub", target_is_directory=True)
    again = f"../{folder.name}/a.jpg", str(folder / "a.jpg"), "link/e.avif", f"link/../../{folder.name}/sub/e.avif"
    rows = "".join(f"{name},{'x' if 'a.jpg' in name else 'y'}\n" for name in ("a.jpg", "sub/e.avif", *again))
    manifest = read(folder, f"image,labels\n{rows}")
    assert manifest.ids == ("a.jpg", "sub/e.avif")
    for name in again:
        with pytest.raises(UserError, match=r"and .*line 4 give '(a\.jpg|sub/e\.avif)' different labels"):
            read(folder, f"image,labels\na.jpg,x\nsub/e.avif,y\n{name},z\n")


def test_images_may_lie_elsewhere_and_the_same_row_twice_counts_once(folder: Path, tmp_path_factory) -> None:
    manifest = read(tmp_path_factory.mktemp("other"), "path,class\na.jpg,cat\na.jpg,cat\n./a.jpg,cat\n", images=folder)
    assert manifest.ids == ("a.jpg",)
    assert manifest.paths == (folder / "a.jpg",)


@pytest.mark.parametrize(
    ("text", "known", "targets", "parts", "line"),
    [
        ("image,labels\na.jpg,?\nb.JPG,x\na.jpg,x\n", [[1], [1]], [[1], [1]], ("", ""), 4),
        ("image,labels\na.jpg,x\nb.JPG,x\na.jpg,?\n", [[1], [1]], [[1], [1]], ("", ""), 2),
        ("image,labels\na.jpg,?\nb.JPG,x\na.jpg,\na.jpg,?\n", [[1], [1]], [[0], [1]], ("", ""), 4),
        ("image,labels,part\na.jpg,?,test\nb.JPG,x,\na.jpg,x,\n", [[1], [1]], [[1], [1]], ("test", ""), 4),
        ("image,labels,part\na.jpg,?,train\nb.JPG,x,\na.jpg,?,\n", [[0], [1]], [[0], [1]], ("train", ""), 4),
        ("image,x,y\na.jpg,,\nb.JPG,1,1\na.jpg,?,0\n", [[0, 1], [1, 1]], [[0, 0], [1, 1]], ("", ""), 4),
    ],
)
def test_a_row_that_knows_something_stands_for_one_that_does_not(
    folder: Path, text: str, known: list, targets: list, parts: tuple, line: int
) -> None:
    """In either order; the place among the images is that of the first row, the part is the one that is named."""
    manifest = read(folder, text)
    assert manifest.ids == ("a.jpg", "b.JPG")
    assert (manifest.labels.known.dense().tolist(), manifest.labels.targets.dense().tolist(), manifest.parts) == (
        known,
        targets,
        parts,
    )
    assert manifest.sources[0].endswith(f"line {line}")


BAD = {
    "image,labels\na.jpg,x\nno.jpg,x\nnor.jpg,y\n": r"csv, line 3: the image 'no.jpg' is not in .* \(2 of 3 images",
    "": "labels.csv is empty; write a header",
    "\n\r\n": "labels.csv is empty",
    "image,labels\n": "a header but no row",
    "image\na.jpg\n": "has one column; its header must be image,labels",
    "a.jpg,cat\nb.JPG,dog\n": "begins with an image instead of a header",
    "image,labels\na.jpg,x\n ,x\n": "labels.csv, line 3: a row without an image",
    "image,labels\na.jpg,\nb.JPG,;\n": "names no class",
    "image,split\na.jpg,train\n": "names no class",
    "image,labels,tags\na.jpg,x,y\n": "has the columns 'labels' and 'tags', which mean the same",
    "image,labels,part\na.jpg,x,tset\n": "line 2: no part is called 'tset'; write train, validation or test",
    "image,labels\na.jpg,x\nb.JPG,x\n\na.jpg,y\n": "csv, line 2 and .*csv, line 5 give 'a.jpg' different labels",
    "image,labels,part\na.jpg,x,train\na.jpg,x,test\n": "line 2 and .*, line 3 give 'a.jpg' different labels or parts",
    "image,labels,part\na.jpg,x,\na.jpg,x,test\n": "line 2 and .*, line 3 give 'a.jpg' different labels or parts",
    "image,x,y\na.jpg,1,0\na.jpg,1,\n": "line 2 and .*, line 3 give 'a.jpg' different",
    "image,labels\na.jpg,?\na.jpg,x\na.jpg,y\n": "line 3 and .*, line 4 give 'a.jpg' different",
    "image,labels,part\na.jpg,?,test\na.jpg,x,train\n": "line 2 and .*, line 3 give 'a.jpg' different",
    b"image,labels\na.jpg,x\nb.JPG,\xe9\x81\n": "labels.csv, line 3: the text is not UTF-8; save",
    "image,labels\na.jpg,x".encode("utf-16-le"): "line 1: a zero byte in the text",
    "image,labels\na.jpg,x\0\n": "line 2: a zero byte",
    "image,labels\na.jpg,x\nb.JPG,x,y\n": "line 3: 3 columns where the header has 2; put quotes",
    "image,x,y\na.jpg,1,0\nb.JPG,2,0\n": "line 3: '2' under 'x'; write 1, 0 or nothing",
    "image,kind\na.jpg,cat\n": "'cat' under 'kind'; .* call that column 'labels'",
    "image,x,y\na.jpg,1,-1\n": "-1 but none with 0; write 0 for absent, [?] for unknown",
    "image,x,y\na.jpg,1.0,-1.0\n": "-1 but none with 0; write 0 for absent, [?] for unknown",
    "image,x,y\na.jpg, 1, -1\n": "-1 but none with 0; write 0 for absent, [?] for unknown",
    "image,x,x\na.jpg,1,0\n": "column 3 is a second 'x'; name each class once",
    "image,x,\na.jpg,1,\n": "column 3 has no name",
    'image,labels\na.jpg,x\n"b.JPG,x\nc d.png,x\n': "line 3: this is no row .* look for a quote that is never closed",
    f"image,labels\na.jpg,{'x' * (csv.field_size_limit() + 1)}\n": r"line 2: this is no row .* \(field larger than",
    f"image,labels\n{'x' * 5000}/a.jpg,x\n": "line 2: the image 'x",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_mistake_gets_one_sentence(folder: Path, text: str | bytes) -> None:
    with pytest.raises(UserError, match=BAD[text]) as caught:
        read(folder, text)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_an_unknown_class_is_refused_with_a_guess(folder: Path) -> None:
    with pytest.raises(UserError, match=r"labels.csv, line 3: unknown class 'dgo'; did you mean 'dog'"):
        read(folder, "image,labels\na.jpg,cat\nb.JPG,cat;dgo\n", classes=("cat", "dog"))
    with pytest.raises(UserError, match=r"labels.csv, header: there is no column 'dog'; did you mean 'dgo'"):
        read(folder, "image,cat,dgo\na.jpg,1,0\n", classes=("cat", "dog"))


def test_columns_that_are_no_class_asked_for_are_left_out_whatever_they_hold(folder: Path) -> None:
    manifest = read(folder, "image,cat,shift,dog\na.jpg,1,-1,?\nb.JPG,1,17 px,1\n", classes=["dog", "cat"])
    assert manifest.class_names == ("dog", "cat")
    assert (manifest.labels.targets.dense().tolist(), manifest.labels.known.dense().tolist()) == (
        [[0, 1], [1, 1]],
        [[0, 1], [1, 1]],
    )


def test_files_and_folders_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"there is no file .*no\.csv"):
        read_table(folder / "no.csv")
    with pytest.raises(UserError, match=r"cannot read the file .*sub \(Is a directory\)"):
        read_table(folder / "sub")
    with pytest.raises(UserError, match=r"there is no folder .*gone; give the folder"):
        read(folder, "image,labels\na.jpg,x\n", images=folder / "gone")

    def refuse(place: str) -> None:
        raise PermissionError(13, "Permission denied", place)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=f"cannot read the folder {folder} .Permission denied.; check"):
        read(folder, "image,labels\na.jpg,x\n")


def test_100_000_rows_are_read_in_five_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row r has the bits of r as labels. 100 folders are said to hold 1,000 images; each is listed once."""
    listed = []
    names = [f"{name}.jpg" for name in range(1000)]
    monkeypatch.setattr(disk, "list_files", lambda place: listed.append(place) or names)
    [(tmp_path / str(part)).mkdir() for part in range(100)]
    bits = [",".join(str(row >> k & 1) for k in range(20)) for row in range(100_000)]
    rows = [f"{row // 1000}/{names[row % 1000]},{cells}" for row, cells in enumerate(bits)]
    (tmp_path / "labels.csv").write_text("\n".join([",".join(["image", *(f"c{k}" for k in range(20))]), *rows]))
    start = time.process_time()  # a busy machine does not count
    manifest = read_table(tmp_path / "labels.csv")
    assert time.process_time() - start < 5
    assert len(listed) == 100
    assert torch.equal((manifest.labels.targets.dense().long() << torch.arange(20)).sum(1), torch.arange(100_000))


MARKS = [*',;\t|" \n\r\\', "\r\n", "\0", "é"]
PIECES = ["image", "labels", "split", "cat", "a.jpg", "sub/e.avif", "1", "0", "-1", "train", *MARKS]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map(lambda pieces: "".join(pieces).encode())


def test_a_table_marked_by_x_says_what_its_empty_cells_mean(folder: Path, capsys: pytest.CaptureFixture) -> None:
    """As spreadsheets write it, with rows of nothing but separators below. With 1 and 0, an empty cell is unknown."""
    rows = "image;cat;dog\na.jpg;X;\nb.JPG;;x\nc d.png;?;\nsub/e.avif;;\n;;\n;;\n"
    manifest = read(folder, rows)
    assert manifest.labels.targets.dense().tolist() == [[1, 0], [0, 1], [0, 0], [0, 0]]
    assert manifest.labels.known.dense().tolist() == [[1, 1], [1, 1], [0, 1], [1, 1]]
    assert "labels.csv marks what is there by x: an empty cell means absent" in capsys.readouterr().err
    with pytest.raises(UserError, match="line 3: 'x' under 'dog'; write 1, 0 or nothing"):
        read(folder, "image,cat,dog\na.jpg,1,0\nb.JPG,,x\n")


def test_text_of_windows_is_read_and_what_is_assumed_is_said(folder: Path, capsys: pytest.CaptureFixture) -> None:
    """UTF-16 begins with a mark. Of other text only the western kind can be guessed: its accents stand alone."""
    text = "image,labels\r\na.jpg,caf\u00e9;dog\r\nb.JPG,cr\u00e9\u00e9e \u2013 dog;pi\u00f1a\r\n,\r\n"
    for encoding in ("utf-16", "utf-8-sig", "cp1252"):
        assert not capsys.readouterr().err
        manifest = read(folder, text.encode(encoding))
        assert manifest.class_names == ("caf\u00e9", "cr\u00e9\u00e9e \u2013 dog", "dog", "pi\u00f1a")
        assert len(manifest) == 2
    said = "labels.csv is not UTF-8 and is read as Windows text (cp1252): is 'caf\u00e9' in line 2 right?"
    assert said in capsys.readouterr().err
    for other, encoding in (("\u72d7", "gbk"), ("\u043a\u043e\u0442", "cp1251"), ("\u732b\u72ac", "shift-jis")):
        with pytest.raises(UserError, match="line 2: the text is not UTF-8; save the file as UTF-8"):
            read(folder, f"image,labels\na.jpg,{other}\n".encode(encoding))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | TEXTS | TEXTS.map(lambda text: b"image,labels\na.jpg," + text))
def test_any_bytes_give_a_manifest_or_one_sentence(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place, "a.jpg").touch()
        try:
            said = " ".join(read(Path(place), data).ids)
        except UserError as error:
            said = str(error)
    assert said == "a.jpg" or (place in said and len(said.splitlines()) == 1)
