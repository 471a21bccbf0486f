"""Uploads are decoded in processes that can be ended, so that no image holds up the server."""

import json
import signal
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from math import prod

import numpy as np

from percentmatch.data.pixels.cache import start_decoder
from percentmatch.data.pixels.decode import BadImage, Frame, NoImage, TooManyPixels

AT_ONCE = 4  # images; while one takes long, others are decoded
SECONDS = 10.0  # for one image
KINDS = {kind.__name__: kind for kind in (BadImage, NoImage, TooManyPixels)}


class Decoders:
    """Processes that wait for the next image: one is started at once, more when they are needed."""

    def __init__(self, size: int, frame: Frame) -> None:
        self.shape = 3, size, size
        self.job = json.dumps({"size": size, "frame": frame, "seconds": SECONDS})
        self.threads = ThreadPoolExecutor(AT_ONCE)
        self.running: set[subprocess.Popen[bytes]] = set()
        self.idle, self.closed = [self._start()], False

    def submit(self, content: bytes) -> "Future[np.ndarray]":
        """The image that a file holds, as its square: (3, size, size) uint8, or BadImage."""
        return self.threads.submit(self._decode, content)

    def close(self) -> None:
        """End all processes, and what they are doing."""
        self.closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        for process in list(self.running):
            process.kill()
            process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        process = start_decoder(self.job, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.running.add(process)
        return process

    def _take(self) -> "subprocess.Popen[bytes]":
        with suppress(IndexError):
            process = self.idle.pop()
            if process.poll() is None:
                return process
        return self._start()

    def _decode(self, content: bytes) -> np.ndarray:
        if not content:
            raise BadImage("the file is empty")
        process = self._take()
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(len(content).to_bytes(8) + content)
            process.stdin.flush()
            wrong = json.loads(process.stdout.readline())
            pixels = bytearray(process.stdout.read(0 if wrong else prod(self.shape)))
            square = np.frombuffer(pixels, np.uint8).reshape((0,) if wrong else self.shape)
        except (OSError, ValueError) as error:
            raise BadImage(self._why_ended(process)) from error
        self.idle.append(process)
        if wrong:
            raise KINDS[wrong[0]](wrong[1])
        return square

    def _why_ended(self, process: "subprocess.Popen[bytes]") -> str:
        process.kill()  # nothing, if it has ended
        code = process.wait()
        self.running.discard(process)
        if self.closed:
            return "the server is stopping"
        return f"decoding it takes more than {SECONDS:g} seconds" if code == -signal.SIGALRM else "decoding it fails"
