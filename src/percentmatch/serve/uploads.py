"""Uploads on their way: how much is read, for how long, and which files a form holds."""

import asyncio
import re
from dataclasses import dataclass

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

SECONDS = 120  # for an upload
SLOW, PATIENCE = 50_000, 2.0  # bytes a second; a slower upload gives way to others after so many seconds
DISCARDED = 64 * 2**20  # bytes of a too large upload that are read and dropped: a client reads no answer while sending
MOST_PARTS = 100  # of a form
BOUNDARY = re.compile(r";\s*boundary=(?:\"((?:[^\"\\]|\\.){1,140})\"|([^\s;\"]{1,70}))", re.IGNORECASE)
FILE = re.compile(rb";\s*filename(?:\*?)\s*=\s*(\"(?:[^\"\\]|\\.)*\"|[^;\r\n]*)", re.IGNORECASE)

File = tuple[str, bytes]  # name, content


@dataclass(eq=False)
class Upload:
    """One on its way."""

    limit: asyncio.Timeout
    begun: float
    size: int = 0  # bytes that have come
    refused: HTTPException | None = None

    def speed(self) -> float:
        """Bytes a second; that of a new one is not known yet."""
        seconds = asyncio.get_running_loop().time() - self.begun
        return self.size / seconds if seconds > PATIENCE else SLOW

    def refuse(self, code: int, sentence: str) -> None:
        if not self.limit.expired():
            self.refused = HTTPException(code, sentence)
            self.limit.reschedule(0)


class Uploads:
    """Those on their way to the server, each of at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.coming: set[Upload] = set()

    def make_room(self) -> bool:
        """Refuse the slowest, if one is slow."""
        slowest = min(self.coming, key=Upload.speed, default=None)
        if slowest is None or slowest.speed() >= SLOW:
            return False
        self.coming.discard(slowest)
        slowest.refuse(408, "the upload was slow, and others were waiting; send it again")
        return True

    def stop(self) -> None:
        for upload in self.coming:
            upload.refuse(503, "the server is stopping")

    async def read(self, request: Request) -> list[File]:
        """The files of a request's form, or its body as the only one; never more than `max_bytes` are kept."""
        limit, body = asyncio.timeout(SECONDS), bytearray()
        upload = Upload(limit, asyncio.get_running_loop().time())
        try:
            async with limit:
                self.coming.add(upload)
                async for chunk in request.stream():
                    upload.size += len(chunk)
                    if upload.size <= self.max_bytes:
                        body += chunk
                    elif upload.size > self.max_bytes + DISCARDED:
                        break
        except ClientDisconnect:
            raise HTTPException(400, "the upload ended early; send it again") from None
        except TimeoutError:
            late = HTTPException(408, f"the upload took more than {SECONDS} seconds; send less")
            raise upload.refused or late from None
        finally:
            self.coming.discard(upload)
        if upload.size > self.max_bytes:
            most = f"{self.max_bytes / 2**20:g} MB"
            raise HTTPException(413, f"the upload is larger than the {most} allowed; send a smaller one")
        kind = request.headers.get("content-type", "")
        files = files_of(bytes(body), kind) if kind.lower().startswith("multipart/") else [("", bytes(body))]
        if not any(content for _, content in files):
            raise HTTPException(400, "the upload is empty; send an image file as the body")
        return files


def files_of(body: bytes, kind: str) -> list[File]:
    """The files of a multipart form. Parsed here, since the usual parsers put large files on the disk."""
    named = BOUNDARY.search(kind)
    boundary = re.sub(r"\\(.)", r"\1", named[1] or named[2]).encode("latin-1", "replace") if named else b""
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary, MOST_PARTS + 2) if boundary else []
    if len(parts) > MOST_PARTS + 2:
        raise HTTPException(400, f"the form has more than {MOST_PARTS} parts; send fewer files at a time")
    files = []
    for part in parts[1:-1]:  # those between the first and the last boundary
        about, _, content = part.partition(b"\r\n\r\n")
        if named := FILE.search(about):
            files.append((named[1].strip(b'"').decode("utf-8", "replace"), content))
    if not files:
        raise HTTPException(400, "the form holds no whole file; send one, or the image itself as the body")
    return files
