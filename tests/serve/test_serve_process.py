"""The command as a process of its own, and its page in a real browser."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from served import CLASSES, encoded

from browser import CHROMIUM, Browser, Page, opened
from percentmatch.cli import main as cli
from percentmatch.errors import UserError
from percentmatch.serve import serve


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    """`percentmatch serve`, where it is. At the end Ctrl-C stops it quietly, even in the middle of an upload."""
    command = [sys.executable, "-m", "percentmatch", "serve", str(model), "--port", "0", "--max-mb", "1"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=alone) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            assert line.startswith("my run is at http://127.0.0.1:")
            yield (found := line.split(" at ")[1].split()[0])
            with socket.create_connection((urlsplit(found).hostname, urlsplit(found).port)) as stalled:
                stalled.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nabc")
                assert post(found, encoded("PNG"))[0] == 200
                process.send_signal(signal.SIGINT)
                assert process.communicate(timeout=20) == ("", "")
            assert process.returncode == 130
        finally:
            process.kill()


def post(address: str, body: object, *, chunked: bool = False) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    connection.request("POST", "/predict", body, encode_chunked=chunked)  # ty: ignore[invalid-argument-type]
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_it_answers_a_plain_client_too_much_as_well(address: str) -> None:
    """A client that sends all before it reads must get the sentence, not a broken connection."""
    assert post(address, encoded("PNG"))[0] == 200
    for status, said in (post(address, bytes(20 * 2**20)), post(address, iter([bytes(2**20)] * 20), chunked=True)):
        assert status == 413
        assert said == {"error": "the upload is larger than the 1 MB allowed; send a smaller one"}
    assert post(address, encoded("PNG"))[0] == 200


def test_bad_input_is_one_sentence(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"^cannot listen at 127.0.0.1, port {port}: .*in use; choose another --port"
        ):
            serve(model, port=port)
    for flags, words in (
        ({"port": 70000}, "--port is 70000"),
        ({"port": -1}, "--port is -1"),
        ({"port": 0, "host": "no such host"}, "cannot listen at no such host"),
        ({"port": 0, "host": "x" * 99}, "cannot listen at x"),
        ({"port": 0, "max_mb": 0}, "--max-mb is 0"),
        ({"port": 0, "site": "https://a.example/"}, "--site 'https://a.example/' is no name; write it as in"),
        ({"port": 0, "max_mb": float("nan")}, "--max-mb is nan"),
    ):
        with pytest.raises(UserError, match=words):
            serve(model, **flags)
    with pytest.raises(UserError, match=r"there is no model .*model.safetensors"):
        serve(tmp_path, port=0)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=r'^serve needs uvicorn, .*; run pip install "percentmatch\[serve\]"$'):
        serve(model, port=0)


@pytest.mark.parametrize(("host", "shown", "hosts"), [("127.0.0.1", "127.0.0.1", True), ("0.0.0.0", "0.0.0.0", False)])
def test_other_machines_are_let_in_only_when_told_and_with_a_warning(
    model: Path, host: str, shown: str, hosts: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import uvicorn

    from percentmatch.serve import app

    built, given = app.build_app, {}

    def build(*arguments: object, **options: object) -> object:
        given.update(options)
        return built(*arguments, **options)  # ty: ignore

    monkeypatch.setattr(app, "build_app", build)
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    cli.run(["serve", str(model / "model.safetensors"), "--host", host, "--port", "0", "--device", "cpu"])
    out, err = capsys.readouterr()
    assert out.startswith(f"my run is at http://{shown}:")
    assert given["hosts"] == (frozenset({"localhost", "127.0.0.1", "[::1]"}) if hosts else None)
    assert (given["max_bytes"], given["site"]) == (20 * 2**20, "")
    cli.run(["serve", str(model), "--host", host, "--port", "0", "--device", "cpu", "--site", "Photos.Example:8443"])
    assert given["site"] == "photos.example:8443"
    assert ("photos.example" in given["hosts"]) if hosts else given["hosts"] is None
    assert bool(err) == (not hosts)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Generator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium here")
    with Browser(tmp_path_factory.mktemp("profile")) as begun:
        yield begun


WAIT = "new Promise(done => {{ const look = () => {0} ? done(true) : setTimeout(look, 20); look(); }})"


def choose(page: Page, file: Path) -> None:
    page.ask("document.getElementById('file').textContent = ''")
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    field = page.call("DOM.querySelector", nodeId=root, selector="#choose")["nodeId"]
    page.call("DOM.setFileInputFiles", files=[str(file)], nodeId=field)
    settled(page)


def settled(page: Page) -> None:
    page.ask(WAIT.format("document.getElementById('file').textContent && answer.getAttribute('aria-busy') === 'false'"))


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_shows_labels_and_bars(browser: Browser, address: str, tmp_path: Path, width: int, dark: bool) -> None:
    file, text = tmp_path / "scene.png", tmp_path / "notes.png"
    file.write_bytes(encoded("PNG"))
    text.write_text("no image")
    said = post(address, file.read_bytes())[1]
    with opened(browser, address, width=width, dark=dark) as page:
        page.ask(WAIT.format("about.textContent.includes('my run')"))
        choose(page, file)
        names = "[...document.querySelectorAll('#classes .name')].map(each => each.textContent)"
        assert page.ask(names) == [each["name"] for each in said["classes"]]
        assert page.ask("[...labels.children].map(each => each.textContent)") == said["labels"]
        widths = page.ask(
            "[...document.querySelectorAll('#classes li:not([hidden]) .fill')]"
            ".map(each => each.getBoundingClientRect().width / each.parentNode.getBoundingClientRect().width)"
        )
        assert widths == pytest.approx([each["probability"] for each in said["classes"][:10]], abs=0.01)
        marked = page.ask("[...document.querySelectorAll('#classes li')].map(each => each.className === 'yes')")
        assert marked == [each["decided"] for each in said["classes"]]
        assert page.ask("preview.naturalWidth") == 64
        assert page.ask("document.documentElement.scrollWidth") == width
        page.ask("more.click()")
        assert page.ask("document.querySelectorAll('#classes li:not([hidden])').length") == len(CLASSES)
        assert page.ask("document.activeElement.parentNode.id") == "classes"
        background = page.ask("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in background[4:-1].split(",")) < 200) == dark
        assert page.complaints() == []
        assert {urlsplit(each).netloc or "blob" for each in page.requests()} == {urlsplit(address).netloc, "blob"}
        choose(page, text)
        assert page.ask("problem.textContent") == "This file cannot be read: it is text, not an image."
        assert page.ask("document.getElementById('all').hidden && labels.hidden && !problem.hidden")


def test_dropped_pasted_and_too_large(browser: Browser, address: str, tmp_path: Path) -> None:
    file = tmp_path / "scene.png"
    file.write_bytes(encoded("PNG"))
    made = "new DataTransfer(); transfer.items.add(new File([new Uint8Array({0})], '{1}'));"
    with opened(browser, address) as page:
        page.ask(WAIT.format("about.textContent.includes('my run')"))
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            page.call("Input.dispatchDragEvent", type=kind, x=200, y=300, data=data)
            assert page.ask("!over.hidden") == (kind != "drop")
        settled(page)
        assert page.ask("document.getElementById('classes').children.length") == len(CLASSES)
        content = list(encoded("PNG", 1))
        page.ask(
            f"file.textContent = ''; var transfer = {made.format(content, 'pasted.png')}"
            "document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: transfer}))"
        )
        settled(page)
        assert page.ask("file.textContent") == "pasted.png"
        assert page.ask("problem.hidden && preview.naturalWidth > 0")
        page.ask("document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: new DataTransfer()}))")
        assert page.ask("problem.textContent").startswith("That is no file; ")
        assert page.complaints() == []
        sent = len(page.requests())
        page.ask(
            f"file.textContent = ''; transfer = {made.format(2**20 + 1, 'large.png')}"
            "document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: transfer}))"
        )
        settled(page)
        assert page.ask("problem.textContent") == "The file is larger than the 1 MB allowed; choose a smaller one."
        assert not [each for each in page.requests()[sent:] if each.endswith("/predict")]


def test_the_keyboard_reaches_everything_and_names_are_said(browser: Browser, address: str, tmp_path: Path) -> None:
    file = tmp_path / "scene.png"
    file.write_bytes(encoded("PNG"))
    with opened(browser, address) as page:
        choose(page, file)
        reached = []
        for _ in range(3):
            for kind in ("keyDown", "keyUp"):
                page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
            reached.append(page.ask("document.activeElement.id"))
        assert {"choose", "more"} <= set(reached)
        tree = page.call("Accessibility.getFullAXTree")["nodes"]
        said = {(node.get("role", {}).get("value"), node.get("name", {}).get("value")) for node in tree}
        assert ("button", "Choose another") in said
        assert ("image", "The image scene.png") in said
        texts = [name for role, name in said if role == "StaticText"]
        assert ", decided" in texts
        assert ", not decided" in texts
        assert ("button", f"Show all {len(CLASSES)} classes") in said
