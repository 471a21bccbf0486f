"""What the server answers, asked without a network."""

import asyncio
import io
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Generator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from PIL import Image
from served import CLASSES, DECISIONS, card, encoded, save_model

from image_bombs import giant_png, large_png, many_strips, scan_bomb
from percentmatch.data.pixels.decode import BadImage
from percentmatch.serve import app as serving
from percentmatch.serve import decoding, uploads
from percentmatch.serve.app import ERRORS, HEADERS, PAGES, build_app
from percentmatch.serve.uploads import files_of
from percentmatch.use.predict import Predictor


def check_error(answer: Any, code: int) -> str:
    """One sentence of JSON, with the headers of every answer."""
    assert answer.status_code == code
    assert answer.headers["content-type"] == "application/json"
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    said = answer.json()
    assert said.keys() == {"error"}
    assert "\n" not in said["error"]
    assert "Traceback" not in said["error"]
    return said["error"]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF"])
def test_the_answer_is_the_predictors(client: TestClient, predictor: Predictor, tmp_path: Path, form: str) -> None:
    """By path and from memory: the same probabilities, decisions and labels, the most probable class first."""
    file = tmp_path / "image.jpg"  # the name says nothing
    file.write_bytes(encoded(form))
    answer = client.post("/predict", content=file.read_bytes(), headers={"Content-Type": "text/plain"})
    assert answer.status_code == 200
    said = answer.json()
    assert said["model"] == "my run"
    probabilities, decided = predictor.predict_proba(file)[0], predictor.predict(file)[0]
    order = np.argsort(-probabilities, kind="stable")
    assert [each["name"] for each in said["classes"]] == [CLASSES[n] for n in order]
    np.testing.assert_allclose([each["probability"] for each in said["classes"]], probabilities[order], atol=1e-6)
    assert [each["decided"] for each in said["classes"]] == [bool(decided[n]) for n in order]
    assert [each["threshold"] for each in said["classes"]] == [DECISIONS.thresholds[n] for n in order]
    assert said["labels"] == [CLASSES[n] for n in order if decided[n]]
    assert 0 < len(said["labels"]) < len(CLASSES)


def test_a_form_is_answered_as_the_file_in_it(client: TestClient) -> None:
    content = encoded("PNG")
    form = client.post("/predict", data={"note": "text first"}, files={"file": ("x.txt", content, "text/plain")})
    assert form.json() == client.post("/predict", content=content).json()
    form = client.post("/predict", data={"filename": "photo.jpg"}, files={"file": ("x", content)})
    assert form.json() == client.post("/predict", content=content).json()


def test_several_files_of_a_form_are_all_answered_in_their_order(client: TestClient) -> None:
    sent = [("a.png", encoded("PNG")), ("ü ä.txt", b"no image"), ("empty.png", b""), ("a.png", encoded("JPEG", 1))]
    answer = client.post("/predict", data={"note": "x"}, files=[("file", each) for each in sent])
    assert answer.status_code == 200
    said = answer.json()
    assert said.keys() == {"images", "model"}
    for n in (0, 3):
        alone = client.post("/predict", content=sent[n][1]).json()
        assert {"file": "a.png", **alone} == {**said["images"][n], "model": "my run"}
    assert said["images"][1:3] == [
        {"file": "ü ä.txt", "error": "this file cannot be read: it is text, not an image"},
        {"file": "empty.png", "error": "this file cannot be read: the file is empty"},
    ]
    many = [("file", ("a.png", b"x"))] * (uploads.MOST_PARTS + 1)
    assert "more than 100 parts" in check_error(client.post("/predict", files=many), 400)
    assert len(client.post("/predict", files=many[1:]).json()["images"]) == uploads.MOST_PARTS


@pytest.mark.parametrize("content", [b"", b"\r\n", b"\r\n\r\n--", b"a\r\n--bound", bytes(range(256)) * 999])
def test_any_bytes_come_out_of_a_form_as_they_went_in(content: bytes) -> None:
    body = b'--bo"und\r\nContent-Disposition: form-data; name="f"; FileName="x"\r\n\r\n%b\r\n--bo"und--\r\n' % content
    assert files_of(body, r'Multipart/Form-Data; charset=utf-8; boundary="bo\"und"') == [("x", content)]


@pytest.mark.parametrize("said", ['boundary="' + ";" * 60_000, "boundary*=idna''x", "boundary*=a\0b''x", "boundary="])
def test_a_form_whose_boundary_is_no_boundary_is_refused_at_once(said: str) -> None:
    before = time.process_time()
    with pytest.raises(HTTPException, match="holds no whole file"):
        files_of(b"--x\r\n\r\n--x--", f"multipart/form-data; {said}")
    assert time.process_time() - before < 1


def test_one_label_an_image_has_no_thresholds(tmp_path: Path) -> None:
    predictor = Predictor(save_model(tmp_path / "single", card("single-label", None)), "cpu")
    with TestClient(build_app(predictor, "single", max_bytes=2**20, hosts=None)) as client:
        said = client.post("/predict", content=encoded("PNG")).json()
    assert said["labels"] == [said["classes"][0]["name"]]
    assert {each["threshold"] for each in said["classes"]} == {None}
    assert sum(each["probability"] for each in said["classes"]) == pytest.approx(1)


def test_without_decisions_one_half_decides(tmp_path: Path) -> None:
    predictor = Predictor(save_model(tmp_path / "plain", card(decisions=None)), "cpu")
    with TestClient(build_app(predictor, "plain", max_bytes=2**20, hosts=None)) as client:
        said = client.post("/predict", content=encoded("PNG")).json()
    assert {each["threshold"] for each in said["classes"]} == {0.5}
    assert all(each["decided"] == (each["probability"] >= 0.5) for each in said["classes"])


FORM = "multipart/form-data; boundary=b"
PART = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n'
BAD = {
    "empty": (b"", "", 400, "empty"),
    "empty file in a form": (PART + b"\r\n--b--\r\n", FORM, 400, "empty"),
    "form without a file": (
        b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\nx\r\n--b--',
        FORM,
        400,
        "no whole",
    ),
    "form cut short": (PART + encoded("PNG"), FORM, 400, "no whole file"),
    "form without a boundary": (PART + b"x\r\n--b--\r\n", "multipart/form-data", 400, "no whole file"),
    "text": (b"hello, I am a photograph", "image/jpeg", 415, "text"),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "image/svg+xml", 415, "SVG"),
    "HEIC": (b"\0\0\0\x18ftypheic" + bytes(50), "image/heic", 415, "HEIC"),
    "random": (bytes(range(256)), "image/png", 415, "none of JPEG"),
    "cut PNG": (encoded("PNG")[:200], "", 422, "cut short"),
    "cut JPEG": (encoded("JPEG")[:400], "", 422, "cut short"),
    "only a JPEG's first bytes": (b"\xff\xd8\xff\xe0\0", "", 422, "cut short"),
    "bomb": (giant_png(), "image/png", 413, "pixels"),
    "scans": (scan_bomb(), "image/jpeg", 422, "more than the 100 scans"),
    "large": (encoded("PNG") + bytes(2**20), "", 413, "1 MB"),
}


@pytest.mark.parametrize(("content", "kind", "code", "words"), BAD.values(), ids=BAD)
def test_bad_uploads_get_one_sentence(client: TestClient, content: bytes, kind: str, code: int, words: str) -> None:
    assert words in check_error(client.post("/predict", content=content, headers={"Content-Type": kind}), code)
    assert client.post("/predict", content=encoded("PNG")).status_code == 200  # and the next one is answered


def call(app: FastAPI, chunks: Generator[bytes], headers: dict[str, str]) -> tuple[int, int]:
    """POST /predict chunk by chunk: the status, and how many bytes were asked for."""
    taken, status = 0, 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        chunk = next(chunks, None)
        taken += len(chunk or b"")
        return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    raw = [(name.lower().encode(), value.encode()) for name, value in {"Host": "localhost", **headers}.items()]
    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "headers": raw}
    asyncio.run(app(scope, receive, send))
    return status, taken


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "10"}, {"Content-Length": "many"}])
def test_the_limit_is_that_of_what_comes(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    """Whatever Content-Length says: all bytes allowed may come, one more may not, an endless upload is cut off."""
    content = encoded("JPEG", quality=1)
    app = build_app(predictor, "m", max_bytes=len(content), hosts=None)
    monkeypatch.setattr(uploads, "DISCARDED", 5_000)
    assert call(app, (bytes([byte]) for byte in content), headers)[0] == 200
    assert call(app, iter([content, b"x"]), headers)[0] == 413  # ty: ignore[invalid-argument-type]
    status, taken = call(app, (bytes(100) for _ in range(10**6)), headers)
    assert status == 413
    assert taken <= len(content) + 5_000 + 100


def test_an_upload_that_ends_early_or_takes_too_long(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    app = build_app(predictor, "m", max_bytes=2**20, hosts=None)
    statuses = []

    async def ask(receive: Any) -> None:
        async def send(message: dict[str, Any]) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "headers": []}
        await app(scope, receive, send)

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def stalled() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {}

    asyncio.run(ask(gone))
    monkeypatch.setattr(uploads, "SECONDS", 0.05)
    asyncio.run(ask(stalled))
    assert statuses == [400, 408]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/predict", 405),
        ("PUT", "/predict", 405),
        ("OPTIONS", "/predict", 405),  # no other site is let in
        ("POST", "/", 405),
        ("DELETE", "/health", 405),
        ("POST", "/predict/", 404),
        ("GET", "/redoc", 404),
        ("GET", "/docs/", 404),
        ("GET", "/page.html", 404),
        ("GET", "/../app.py", 404),
        ("GET", "/%2e%2e/app.py", 404),
    ],
)
def test_other_paths_and_methods(client: TestClient, method: str, path: str, code: int) -> None:
    answer = client.request(method, path)
    assert check_error(answer, code).startswith("there is no" if code == 404 else path)
    assert ("allow" in answer.headers) == (code == 405)
    assert "access-control-allow-origin" not in answer.headers


def test_the_page_for_programs_and_openapi_say_all(client: TestClient) -> None:
    """Paths, statuses and fields of one are in the other; what is said of a status is word for word the same."""
    said, page = client.get("/openapi.json").json(), client.get("/docs").text
    assert said["paths"].keys() == {"/predict", "/health"}
    words = [f"<code>{verb.upper()} {path}" for path, verbs in said["paths"].items() for verb in verbs]
    words += [f"<tr><th>{code}</th><td>{sentence}</td>" for code, sentence in ERRORS.items()]
    words += [f'"{field}": ' for each in said["components"]["schemas"].values() for field in each["properties"]]
    assert [word for word in words if word not in page] == []
    responses = said["paths"]["/predict"]["post"]["responses"]
    assert {int(code) for code in responses} == {200, *ERRORS}
    answer = client.post("/predict", content=encoded("PNG")).json()
    schemas = said["components"]["schemas"]
    assert answer.keys() == schemas["Answer"]["properties"].keys()
    assert answer["classes"][0].keys() == schemas["ClassScore"]["properties"].keys()
    assert client.get("/health").json().keys() == schemas["Health"]["properties"].keys()


def test_the_pages_are_strict_and_load_nothing_from_elsewhere(client: TestClient) -> None:
    for path, (name, kind) in PAGES.items():
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].split(";")[0] == kind
        assert {each: answer.headers[each] for each in HEADERS} == HEADERS
        assert answer.content == files("percentmatch.serve").joinpath(name).read_bytes()
        assert client.head(path).status_code == 200
        assert re.findall(r"//\w+\.\w|url\(|@import", answer.text.replace("http://www.w3.org/2000/svg", "")) == []
        assert not re.search(r"\sstyle=|\son\w+=|<style|<script>", answer.text)
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "innerHTML" not in client.get("/page.js").text


def test_health_says_what_the_page_needs(client: TestClient) -> None:
    said = client.get("/health").json()
    assert said.pop("version")
    about = {"status": "ok", "model": "my run", "task": "multi-label", "classes": len(CLASSES), "max_bytes": 2**20}
    assert said == about


def test_only_known_hosts_and_the_own_page_are_answered(client: TestClient, predictor: Predictor) -> None:
    """A site whose name leads here by its own DNS, and a page of another site."""
    content = encoded("PNG")
    for host in ("localhost", "localhost:8000", "LOCALHOST:1"):
        assert client.get("/health", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "localhost@evil.example", "[::1", ""):
        check_error(client.get("/health", headers={"Host": host}), 403)
        check_error(client.post("/predict", headers={"Host": host}, content=content), 403)
    for origin in ("http://evil.example", "http://localhost:9000", "null", "http://[", ""):
        check_error(client.post("/predict", headers={"Origin": origin}, content=content), 403)
    own = {"Origin": "http://localhost:8000"}
    assert client.post("/predict", headers=own, content=content).status_code == 200
    with TestClient(build_app(predictor, "m", max_bytes=2**20, hosts=None), base_url="http://any.example") as open_one:
        assert open_one.get("/health").status_code == 200
        assert open_one.post("/predict", headers={"Origin": "http://evil.example"}).status_code == 403
    options = {"max_bytes": 2**20, "hosts": frozenset({"127.0.0.1"}), "site": "photos.example:8443"}
    with TestClient(build_app(predictor, "m", **options), base_url="http://127.0.0.1:8000") as behind:  # a web server
        for origin, code in (("https://photos.example:8443", 200), ("https://photos.example", 403), ("null", 403)):
            assert behind.post("/predict", headers={"Origin": origin}, content=content).status_code == code


def test_a_failure_of_the_server_shows_no_traceback(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "logits", lambda *_: 1 / 0)
    assert check_error(client.post("/predict", content=encoded("PNG")), 500) == (
        "the server failed; its terminal says why"
    )


def test_a_model_that_diverged_says_so(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "logits", lambda *_: torch.full((1, len(CLASSES)), torch.nan))
    assert "has diverged" in check_error(client.post("/predict", content=encoded("PNG")), 500)


def test_one_image_at_a_time_while_health_answers(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    app = build_app(predictor, "m", max_bytes=2**20, hosts=None)
    go, begun, at_once = threading.Event(), [], []
    score = serving.score

    def slow(*given: Any) -> dict[str, Any]:
        begun.append(1)
        at_once.append(len(begun))
        assert go.wait(20)
        answer = score(*given)
        begun.pop()
        return answer

    monkeypatch.setattr(serving, "score", slow)
    monkeypatch.setattr(serving, "MOST_WAITING", 3)

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://any") as client:
            tasks = [asyncio.create_task(client.post("/predict", content=encoded("PNG", n))) for n in range(3)]
            while not begun:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            assert (await client.get("/health")).status_code == 200
            crowded = await client.post("/predict", content=encoded("PNG"))
            check_error(crowded, 503)
            assert not any(task.done() for task in tasks)
            go.set()
            assert [(await task).status_code for task in tasks] == [200] * 3
            assert (await client.post("/predict", content=encoded("PNG"))).status_code == 200

    asyncio.run(ask())
    assert at_once == [1] * 4


def test_an_image_that_takes_long_is_given_up_and_others_are_answered_meanwhile(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that take many seconds, of the four that can be decoded at a time."""
    monkeypatch.setattr(decoding, "SECONDS", 2.0)
    app, small, large = build_app(predictor, "m", max_bytes=2**25, hosts=None), encoded("PNG"), many_strips(4_000_000)

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://any") as client:
            await asyncio.gather(*(client.post("/predict", content=small) for _ in range(4)))  # all have started
            bombs = [asyncio.create_task(client.post("/predict", content=large)) for _ in range(2)]
            await asyncio.sleep(0.1)
            assert (await client.post("/predict", content=small)).status_code == 200
            assert not any(task.done() for task in bombs)
            for task in bombs:
                assert "decoding it takes more than 2 seconds" in check_error(await task, 422)
            assert (await client.post("/predict", content=small)).status_code == 200

    asyncio.run(ask())
    app.state.stop()


def test_a_decoder_that_was_killed_is_replaced(predictor: Predictor) -> None:
    """Killed as the system does when memory is short: while it waits, and while it decodes."""
    decoders = decoding.Decoders(32, "squash")
    decoders.submit(encoded("PNG")).result()
    (first,) = decoders.running
    first.kill()
    first.wait()
    assert decoders.submit(encoded("PNG")).result().shape == (3, 32, 32)
    (busy,) = decoders.idle
    future = decoders.submit(large_png())
    time.sleep(0.1)
    busy.kill()
    with pytest.raises(BadImage, match=r"^decoding it fails$"):
        future.result()
    assert decoders.submit(encoded("PNG")).result().shape == (3, 32, 32)
    decoders.close()
    assert all(process.returncode is not None for process in decoders.running)


@pytest.mark.parametrize("drips", [False, True])
def test_idle_and_slow_uploads_lock_nobody_out(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, drips: bool
) -> None:
    """Sixteen that send nothing more, or a byte now and then: each new upload takes the place of one of them."""
    monkeypatch.setattr(uploads, "PATIENCE", 0.2)
    app = build_app(predictor, "m", max_bytes=2**20, hosts=None)

    async def idle() -> AsyncGenerator[bytes]:
        yield b"abc"
        while True:
            await asyncio.sleep(0.05 if drips else 60)
            yield b"d"

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://any") as client:
            stuck = [asyncio.create_task(client.post("/predict", content=idle())) for _ in range(16)]
            await asyncio.sleep(0.05)
            check_error(await client.post("/predict", content=encoded("PNG")), 503)  # they are not slow yet
            await asyncio.sleep(0.3)
            for count in range(1, 4):
                assert (await client.post("/predict", content=encoded("PNG"))).status_code == 200
                await asyncio.sleep(0.05)
                assert sum(task.done() for task in stuck) == 1, count  # there is room for the others then
            for task in stuck:
                if task.done():
                    assert "slow, and others were waiting" in check_error(task.result(), 408)
                task.cancel()

    asyncio.run(ask())
    app.state.stop()


WRITES: list[str] | None = None


def audit(event: str, given: tuple) -> None:
    """Files opened to be written, however they are opened."""
    if WRITES is not None and event == "open" and given[0] != os.devnull:
        written = given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if isinstance(given[2], int) else 0
        WRITES.extend([str(given[0])] if written else [])


sys.addaudithook(audit)


def test_uploads_are_not_written_to_disk(predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones neither, in a form or not, whole or broken: by the files opened, and by what a folder holds."""
    global WRITES
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    noise = np.random.default_rng(0).integers(0, 255, (1100, 1100, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    large = file.getvalue()
    assert len(large) > 3 * 2**20  # more than parsers of forms keep in memory
    with TestClient(build_app(predictor, "m", max_bytes=5 * 2**20, hosts=None)) as client:
        WRITES = []
        tempfile.TemporaryFile().close()
        assert WRITES  # the watch sees
        WRITES.clear()
        client.post("/predict", content=large).raise_for_status()
        client.post("/predict", files={"file": ("photo.png", large)}).raise_for_status()
        for form in ("TIFF", "AVIF", "GIF"):
            client.post("/predict", content=encoded(form)).raise_for_status()
        assert client.post("/predict", content=large * 2).status_code == 413
        assert client.post("/predict", content=large[: 2**20]).status_code == 422
        found, WRITES = WRITES, None
    assert found == []
    assert list(tmp_path.iterdir()) == []
