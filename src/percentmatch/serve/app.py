"""What the server answers. Uploads stay in memory; every error is one sentence of JSON."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from signal import SIGINT, SIGTERM
from types import FrameType
from typing import Any

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.routing import Route

from percentmatch import __version__
from percentmatch.console.signals import ignored
from percentmatch.data.pixels.decode import BadImage, NoImage, TooManyPixels
from percentmatch.scoring.calibration import decisions_of, probabilities_of, thresholds_of
from percentmatch.scoring.predictions import logits
from percentmatch.serve.decoding import Decoders
from percentmatch.serve.uploads import Uploads
from percentmatch.use.predict import Predictor

PAGES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/docs": ("docs.html", "text/html"),
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
MOST_WAITING = 16  # requests whose images are held in memory at a time
ERRORS = {
    400: "The upload is empty, ended early, or is a form without a file or with more than a hundred.",
    403: "The request came by another host name or from another web site.",
    408: "The upload took more than two minutes, or was slow while others were waiting.",
    413: "More bytes than are allowed, or more than 100 million pixels.",
    415: "Not an image, or a format that is not supported: the content counts, not the name.",
    422: "A damaged or truncated image, or one that takes more than ten seconds to decode.",
    500: "A fault of the server; its terminal shows it.",
    503: "Sixteen uploads are waiting already, or the server is stopping.",
}
BODY = {"schema": {"type": "string", "format": "binary"}}
FORM = {"schema": {"type": "object", "additionalProperties": {"type": "string", "format": "binary"}}}


@dataclass(frozen=True)
class ClassScore:
    """What the model says of a class."""

    name: str
    probability: float
    decided: bool
    threshold: float | None


@dataclass(frozen=True)
class Answer:
    """Of one image: the labels decided for, and all classes, the most probable first."""

    labels: list[str]
    classes: list[ClassScore]
    model: str


@dataclass(frozen=True)
class FileAnswer:
    """Of one of several files: its labels and classes, or why it cannot be read."""

    file: str
    labels: list[str] | None = None
    classes: list[ClassScore] | None = None
    error: str | None = None


@dataclass(frozen=True)
class Answers:
    """Of several files of one form, in their order."""

    images: list[FileAnswer]
    model: str


@dataclass(frozen=True)
class Problem:
    """What is wrong, in one sentence."""

    error: str


@dataclass(frozen=True)
class Health:
    """That the server answers, and for which model."""

    status: str
    model: str
    task: str
    classes: int
    max_bytes: int
    version: str


class Server(uvicorn.Server):
    """Ends what it is doing as soon as it is told to stop, and then waits a second at most."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.deaf = {*filter(ignored, (SIGINT, SIGTERM))}

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig not in self.deaf:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: Any = None) -> None:
        self.config.app.state.stop()  # ty: ignore
        await super().shutdown(sockets)


def build_app(
    predictor: Predictor, name: str, *, max_bytes: int, hosts: frozenset[str] | None, site: str = ""
) -> FastAPI:
    """The server of a model, which users see as `name`. It answers to the names in `hosts`, or to any if that is None.

    So no web site can use it by pointing a domain name of its own here. `site` is the name of a web server in front.
    """
    worker = ThreadPoolExecutor(1)  # one image at a time is scored, while the server answers others
    uploads, decoders = Uploads(max_bytes), Decoders(predictor.card.decode_size, predictor.card.frame)
    waiting = 0

    def stop() -> None:
        uploads.stop()
        decoders.close()
        worker.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncGenerator[None]:
        yield
        stop()

    # FastAPI's own documentation page loads scripts from elsewhere
    app = FastAPI(title="PercentMatch", version=__version__, lifespan=life, docs_url=None, redoc_url=None)
    app.router.redirect_slashes, app.state.stop = False, stop

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
            404: f"there is no {path}; the page is at /, and /docs says what programs use",
            405: f"{path} takes {allowed}, not {method}",
        }
        return _error(error.status_code, sentences.get(error.status_code, error.detail), error.headers)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        return _error(500, "the server failed; its terminal says why")

    for path, (file, kind) in PAGES.items():
        page = Response(files("percentmatch.serve").joinpath(file).read_bytes(), media_type=kind)
        app.router.routes.append(Route(path, page, methods=["GET"]))  # and HEAD

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Health:
        """That the server answers, at any time."""
        card = predictor.card
        return Health("ok", name, card.task, len(card.class_names), max_bytes, __version__)

    async def look(content: bytes) -> dict[str, Any]:
        try:
            pixels = await asyncio.wrap_future(decoders.submit(content))
        except BadImage as error:
            code = 415 if isinstance(error, NoImage) else 413 if isinstance(error, TooManyPixels) else 422
            raise HTTPException(code, f"this file cannot be read: {error}") from error
        return await asyncio.get_running_loop().run_in_executor(worker, score, predictor, pixels)

    errors: dict[int | str, dict[str, Any]] = {code: {"model": Problem, "description": ERRORS[code]} for code in ERRORS}
    answers = {"model": Answer | Answers, "description": "For one image; or, for several files in a form, for each."}
    body = {"required": True, "content": {"image/*": BODY, "multipart/form-data": FORM}}

    @app.post("/predict", responses={200: answers, **errors}, openapi_extra={"requestBody": body})
    async def predict(request: Request) -> Response:
        """The labels of an image, which is the body or in a form, or of several images in a form."""
        nonlocal waiting
        if waiting >= MOST_WAITING and not uploads.make_room():
            raise HTTPException(503, "too many images are waiting; try again in a moment", {"Retry-After": "2"})
        waiting += 1
        try:
            sent = await uploads.read(request)
            if len(sent) == 1:
                return JSONResponse({**await look(sent[0][1]), "model": name})
            rows: list[dict[str, Any]] = []
            for file, content in sent:
                try:
                    rows.append({"file": file, **await look(content)})
                except HTTPException as error:
                    rows.append({"file": file, "error": error.detail})
            return JSONResponse({"images": rows, "model": name})
        finally:
            waiting -= 1

    return app


def score(predictor: Predictor, square: np.ndarray) -> dict[str, Any]:
    """Labels and classes of a decoded image (3, s, s), the most probable first."""
    card = predictor.card
    found = logits(predictor.network, torch.from_numpy(square)[None], card, predictor.device)  # (1, c)
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


def _error(code: int, sentence: str, headers: Any = None) -> Response:
    return JSONResponse({"error": sentence}, code, {**HEADERS, **(headers or {})})
