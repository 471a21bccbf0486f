"""What the server answers. Uploads stay in memory; every error is one sentence of JSON."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from importlib.resources import files
from typing import Any

import torch
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from percentmatch import __version__
from percentmatch.data.pixels.decode import BadImage, NoImage, TooManyPixels, decode_bytes
from percentmatch.scoring.calibration import decisions_of, probabilities_of, thresholds_of
from percentmatch.scoring.predictions import logits
from percentmatch.use.predict import Predictor

PAGES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MOST_WAITING = 16  # uploads held in memory at a time
UPLOAD_SECONDS = 120
DISCARDED = 64 * 2**20  # bytes of a too large upload that are read and dropped: a client reads no answer while sending
MOST_PARTS = 100  # of a form


def build_app(
    predictor: Predictor, name: str, *, max_bytes: int, hosts: frozenset[str] | None, site: str = ""
) -> FastAPI:
    """The server of a model, which users see as `name`. It answers to the names in `hosts`, or to any if that is None.

    So no web site can use it by pointing a domain name of its own here. `site` is the name of a web server in front.
    """
    app = FastAPI(openapi_url=None, redirect_slashes=False)  # FastAPI's documentation page loads scripts from elsewhere
    worker = ThreadPoolExecutor(1)  # one image at a time, while the server answers others
    waiting = 0

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        host, origin = request.headers.get("host", "").lower(), request.headers.get("origin")
        if hosts is not None and re.sub(r":\d*$", "", host) not in hosts:
            return _error(403, f"this server answers to {', '.join(sorted(hosts))} only; use one of these addresses")
        from_site = None if origin is None else origin.lower().partition("://")[2]
        if request.method == "POST" and from_site not in ({None, host, site} - {""}):
            return _error(403, "this server answers no other site; open its own page, or send no Origin header")
        response = await answer(request)
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(AnyHTTPException)
    async def refuse(request: Request, error: AnyHTTPException) -> Response:
        path, method = request.scope["path"], request.method
        allowed = (error.headers or {}).get("Allow", "")
        sentences = {
            404: f"there is no {path}; the page is at /, programs use POST /predict and GET /health",
            405: f"{path} takes {allowed}, not {method}",
        }
        return _error(error.status_code, sentences.get(error.status_code, error.detail), error.headers)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        return _error(500, "the server failed; its terminal says why")

    for path, (file, kind) in PAGES.items():
        page = Response(files("percentmatch.serve").joinpath(file).read_bytes(), media_type=kind)
        app.router.routes.append(Route(path, page, methods=["GET"]))  # and HEAD

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> dict[str, Any]:
        card = predictor.card
        about = {"task": card.task, "classes": len(card.class_names), "max_bytes": max_bytes}
        return {"status": "ok", "model": name, **about, "version": __version__}

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        nonlocal waiting
        if waiting >= MOST_WAITING:
            raise HTTPException(503, "too many images are waiting; try again in a moment", {"Retry-After": "2"})
        waiting += 1
        try:
            content = await read_upload(request, max_bytes)
            answer = await asyncio.get_running_loop().run_in_executor(worker, look, predictor, content)
        except BadImage as error:
            code = 415 if isinstance(error, NoImage) else 413 if isinstance(error, TooManyPixels) else 422
            raise HTTPException(code, f"this file cannot be read: {error}") from error
        finally:
            waiting -= 1
        return JSONResponse({**answer, "model": name})

    return app


def look(predictor: Predictor, content: bytes) -> dict[str, Any]:
    """Labels and classes of an image file's content, the most probable first. Raises BadImage."""
    card = predictor.card
    pixels = torch.from_numpy(decode_bytes(content, card.decode_size, card.frame))[None]
    found = logits(predictor.network, pixels, card, predictor.device)  # (1, c)
    if not found.isfinite().all():
        raise HTTPException(500, "the model gives scores that are not finite numbers: its training has diverged")
    columns = {
        "name": card.class_names,
        "probability": probabilities_of(found, card)[0].tolist(),
        "decided": decisions_of(found, card)[0].bool().tolist(),
        "threshold": thresholds_of(card) or (None,) * len(card.class_names),
    }
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    classes = sorted(rows, key=lambda row: -row["probability"])
    return {"labels": [each["name"] for each in classes if each["decided"]], "classes": classes}


async def read_upload(request: Request, max_bytes: int) -> bytes:
    """The image in a request's body, or in the first file of its form; never more than `max_bytes` are kept."""
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= max_bytes:
                    body += chunk
                elif size > max_bytes + DISCARDED:
                    break
    except ClientDisconnect:
        raise HTTPException(400, "the upload ended early; send it again") from None
    except TimeoutError:
        raise HTTPException(408, f"the upload took more than {UPLOAD_SECONDS} seconds; send less") from None
    if size > max_bytes:
        raise HTTPException(413, f"the upload is larger than the {max_bytes / 2**20:g} MB allowed; send a smaller one")
    kind = request.headers.get("content-type", "")
    content = first_file(bytes(body), kind) if kind.lower().startswith("multipart/") else bytes(body)
    if not content:
        raise HTTPException(400, "the upload is empty; send an image file as the body")
    return content


def first_file(body: bytes, kind: str) -> bytes:
    """The first file of a multipart form. Parsed here, since the usual parsers put large files on the disk."""
    head = Message()
    head["Content-Type"] = kind
    boundary = (head.get_boundary() or "").encode("latin-1", "replace")
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary, MOST_PARTS) if boundary else []
    for part in parts[1:-1]:  # those between the first and the last boundary
        about, _, content = part.partition(b"\r\n\r\n")
        if re.search(rb";\s*filename\*?\s*=", about, re.IGNORECASE):
            return content
    raise HTTPException(400, "the form holds no whole file; send one, or the image itself as the body")


def _error(code: int, sentence: str, headers: Any = None) -> Response:
    return JSONResponse({"error": sentence}, code, {**HEADERS, **(headers or {})})
