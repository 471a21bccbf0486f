"""The command as a process of its own, and its page in a real browser."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from served import CLASSES, encoded

from browser import Opened, opened
from forked import exit_code, start_copy
from image_bombs import large_png, scan_bomb
from percentmatch.cli import main as cli
from percentmatch.errors import UserError
from percentmatch.serve import serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def flags(model: Path) -> list[str]:
    return ["serve", str(model), "--port", "0", "--max-mb", "1"]


def address_in(line: str) -> str:
    assert line.startswith("my run is at http://127.0.0.1:"), line
    return line.split(" at ")[1].split()[0]


@contextlib.contextmanager
def running(model: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`percentmatch serve`: where it is, and its process."""
    with subprocess.Popen(
        [sys.executable, "-m", "percentmatch", *flags(model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout
            yield address_in(process.stdout.readline()), process
        finally:
            process.kill()


def serve_here(model: Path, deaf: bool) -> None:
    """The same in a copy of this process, which hears Ctrl-C or was started to ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN if deaf else signal.default_int_handler)
    sys.argv = ["percentmatch", *flags(model)]
    cli.main()


@contextlib.contextmanager
def copied(model: Path, said: Path, *, deaf: bool = False) -> Iterator[tuple[str, BaseProcess]]:
    process = start_copy(serve_here, model, deaf, said=said)
    try:
        until = time.monotonic() + 60
        while not (said.exists() and "\n" in said.read_text()) and process.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        yield address_in(said.read_text()), process
    finally:
        process.kill()


@pytest.fixture(scope="module")
def address(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with copied(model, tmp_path_factory.mktemp("server") / "said") as (found, _):
        yield found


def test_ctrl_c_ends_it_at_once_whatever_it_is_doing(model: Path) -> None:
    """Quietly, within two seconds: with idle connections and uploads, and images that take seconds to decode."""
    with running(model) as (address, process), contextlib.ExitStack() as stack:
        place = urlsplit(address).hostname, urlsplit(address).port
        for begun in (b"", b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nabc"):
            for _ in range(3):
                idle = stack.enter_context(socket.create_connection(place))
                idle.sendall(begun)
        kept = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
        stack.callback(kept.close)
        kept.request("POST", "/predict", encoded("PNG"))
        assert kept.getresponse().read().startswith(b'{"labels":')
        assert post(address, scan_bomb())[0] == 422
        large = large_png()
        for _ in range(6):
            busy = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
            stack.callback(busy.close)
            busy.request("POST", "/predict", large)
        time.sleep(0.2)
        begun_at = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == ("", "")
        assert time.monotonic() - begun_at < 2
        assert process.returncode == 130


def post(address: str, body: object, *, chunked: bool = False) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    connection.request("POST", "/predict", body, encode_chunked=chunked)  # ty: ignore[invalid-argument-type]
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_ctrl_c_that_is_ignored_at_the_start_does_not_stop_it(model: Path, tmp_path: Path) -> None:
    """As a shell starts the jobs in its background: Ctrl-C is for the command in front of them."""
    with copied(model, tmp_path / "said", deaf=True) as (found, process):
        assert post(found, encoded("PNG"))[0] == 200  # it listens by now
        os.kill(process.pid, signal.SIGINT)
        assert post(found, encoded("PNG"))[0] == 200
        time.sleep(0.3)
        assert post(found, encoded("PNG"))[0] == 200
        process.terminate()
        assert exit_code(process, 20) in (-signal.SIGTERM, 128 + signal.SIGTERM)
        assert (tmp_path / "said").read_text().count("\n") == 1  # and nothing since


def test_it_answers_a_plain_client_too_much_as_well(address: str) -> None:
    """A client that sends all before it reads must get the sentence, not a broken connection."""
    assert post(address, encoded("PNG"))[0] == 200
    for status, said in (post(address, bytes(20 * 2**20)), post(address, iter([bytes(2**20)] * 20), chunked=True)):
        assert status == 413
        assert said == {"error": "the upload is larger than the 1 MB allowed; send a smaller one"}
    assert post(address, encoded("PNG"))[0] == 200


def test_an_answer_does_not_wait_for_the_network(address: str) -> None:
    """Its second piece for the receipt of the first, which a system gives after 40 ms: the quickest of thirty."""
    connection, seconds = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20), []
    for _ in range(30):
        begun = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        seconds.append(time.perf_counter() - begun)
    connection.close()
    assert min(seconds) < 0.03


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


WAIT = "new Promise(done => {{ const look = () => {0} ? done(true) : setTimeout(look, 20); look(); }})"


def choose(page: Opened, file: Path) -> None:
    page.ask("document.getElementById('file').textContent = ''")
    page.page.set_input_files("#choose", file)
    settled(page)


def settled(page: Opened) -> None:
    page.ask(WAIT.format("document.getElementById('file').textContent && answer.getAttribute('aria-busy') === 'false'"))


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_shows_labels_and_bars(
    browser: "Browser", address: str, tmp_path: Path, width: int, dark: bool
) -> None:
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
        assert page.complaints == []
        assert {urlsplit(each).netloc or "blob" for each in page.requests} == {urlsplit(address).netloc, "blob"}
        choose(page, text)
        assert page.ask("problem.textContent") == "This file cannot be read: it is text, not an image."
        assert page.ask("document.getElementById('all').hidden && labels.hidden && !problem.hidden")


def test_dropped_pasted_and_too_large(browser: "Browser", address: str, tmp_path: Path) -> None:
    file = tmp_path / "scene.png"
    file.write_bytes(encoded("PNG"))
    made = "new DataTransfer(); transfer.items.add(new File([new Uint8Array({0})], '{1}'));"
    with opened(browser, address) as page:
        page.ask(WAIT.format("about.textContent.includes('my run')"))
        devtools = page.page.context.new_cdp_session(page.page)  # playwright itself drags no files of the disk
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            devtools.send("Input.dispatchDragEvent", {"type": kind, "x": 200, "y": 300, "data": data})
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
        assert page.complaints == []
        sent = len(page.requests)
        page.ask(
            f"file.textContent = ''; transfer = {made.format(2**20 + 1, 'large.png')}"
            "document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: transfer}))"
        )
        settled(page)
        assert page.ask("problem.textContent") == "The file is larger than the 1 MB allowed; choose a smaller one."
        assert not [each for each in page.requests[sent:] if each.endswith("/predict")]


def test_the_keyboard_reaches_everything_and_names_are_said(browser: "Browser", address: str, tmp_path: Path) -> None:
    file = tmp_path / "scene.png"
    file.write_bytes(encoded("PNG"))
    with opened(browser, address) as page:
        choose(page, file)
        reached = []
        for _ in range(14):
            page.page.keyboard.press("Tab")
            reached.append(page.ask("document.activeElement.id || document.activeElement.ariaLabel || ''"))
        assert {"choose", "more", "save"} <= set(reached)
        assert sum(each.startswith("Threshold of ") for each in reached) == 10
        said = page.page.locator("body").aria_snapshot()
        assert 'button "Add images"' in said
        assert 'img "The image scene.png"' in said
        assert ", decided" in said
        assert ", not decided" in said
        assert f'button "Show all {len(CLASSES)} classes"' in said


def test_sliders_decide_at_once_and_their_thresholds_are_downloaded(
    browser: "Browser", address: str, tmp_path: Path
) -> None:
    """Two images and a text: what is decided is what the thresholds say of the server's probabilities."""
    files = [tmp_path / name for name in ("a.png", "b.png", "notes.txt")]
    for n, file in enumerate(files):
        file.write_bytes(encoded("PNG", n) if n < 2 else b"no image")
    said = [post(address, file.read_bytes())[1]["classes"] for file in files[:2]]
    thresholds = {each["name"]: each["threshold"] for each in said[0]}

    def expected() -> list[str]:
        """The labels of both, as the strip of images shows them."""
        return [", ".join(e["name"] for e in image if e["probability"] >= thresholds[e["name"]]) for image in said]

    with opened(browser, address) as page:
        shown = "[...document.querySelectorAll('#strip button')].map(each => each.lastChild.textContent)"
        labels = "[...document.querySelectorAll('#labels li')].map(each => each.textContent).join(', ')"
        page.page.set_input_files("#choose", files)
        page.ask(WAIT.format("!document.getElementById('strip').textContent.includes('…') && strip.children[2]"))
        assert page.ask(shown) == [*expected(), "this file cannot be read: it is text, not an image"]
        assert page.ask(labels) == expected()[0]
        sent = len(page.requests)
        for row, to in ((0, 1.0), (3, 0.0)):
            name = said[0][row]["name"]
            thresholds[name] = to
            slider = page.page.get_by_label(f"Threshold of {name}", exact=True)
            slider.focus()
            page.page.keyboard.press("End" if to else "Home")
            assert slider.get_attribute("aria-valuetext") == ("100.0 %" if to else "0.0 %")
            assert page.ask(shown)[:2] == expected()
            assert page.ask(labels) == expected()[0]
            assert page.ask(f"classes.children[{row}].className") == ("no" if to else "yes")
        assert said[0][0]["name"] not in expected()[0].split(", ")
        assert page.ask("document.getElementById('status').textContent").endswith("13 classes with your thresholds.")
        assert len(page.requests) == sent  # the server is not asked
        with page.page.expect_download() as download:
            page.page.click("#save")
        assert download.value.suggested_filename == "thresholds.json"
        assert json.loads(download.value.path().read_text()) == {"thresholds": thresholds}
        page.page.click("#strip li:nth-child(2) button")
        assert page.ask("file.textContent") == "b.png"
        assert page.ask(labels) == expected()[1]
        page.page.click("#reset")
        thresholds.update({each["name"]: each["threshold"] for each in said[0]})
        assert page.ask(shown)[:2] == expected()
        page.page.click("#strip li:nth-child(3) button")
        assert page.ask("problem.textContent") == "This file cannot be read: it is text, not an image."
        assert [each for each in page.complaints if "status of 415" not in each] == []


def test_one_label_an_image_has_no_sliders(browser: "Browser", address: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded("PNG"))
    said = post(address, encoded("PNG"))[1]
    single = [{**each, "threshold": None, "decided": not n} for n, each in enumerate(said["classes"])]
    with opened(browser, address) as page:
        page.page.route("**/predict", lambda route: route.fulfill(json={**said, "classes": single}))
        choose(page, tmp_path / "a.png")
        assert page.ask("[...document.querySelectorAll('#classes .yes .name')].map(each => each.textContent)") == [
            single[0]["name"]
        ]
        assert page.ask("document.querySelectorAll('.slider').length") == 0
        assert page.ask("document.getElementById('moved').hidden")
        assert page.complaints == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_for_programs_loads_only_from_this_server(browser: "Browser", address: str, width: int) -> None:
    with opened(browser, address, width=width) as page:
        page.page.click("footer a")
        page.page.wait_for_url("**/docs")
        assert page.page.locator("h1").inner_text() == "For programs"
        assert page.ask("document.documentElement.scrollWidth") == width
        assert {urlsplit(each).netloc for each in page.requests} == {urlsplit(address).netloc}
        assert page.complaints == []
