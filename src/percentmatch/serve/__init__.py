"""A model in the browser: a small page to try images on, and an HTTP address for programs."""

import ipaddress
import logging
import re
import socket
import sys
from pathlib import Path

from percentmatch.errors import UserError
from percentmatch.use.predict import Predictor

SITE = re.compile(r"(?:[\w.-]+(?::\d+)?)?")  # a host name, and its port if that is not the usual one


def serve(
    model: Path, *, host: str = "127.0.0.1", port: int = 8000, site: str = "", max_mb: float = 20, device: str = "auto"
) -> None:
    """Answer until Ctrl-C. `model` is as for `Predictor`; port 0 is any free one; `site` as for `build_app`."""
    try:
        import uvicorn

        from percentmatch.serve.app import Server, build_app
    except ImportError as error:
        raise UserError(f'serve needs {error.name}, which is missing; run pip install "percentmatch[serve]"') from error
    if not 0 < max_mb < float("inf"):
        raise UserError(f"--max-mb is {max_mb:g}; it must be above 0")
    if not SITE.fullmatch(site):
        raise UserError(f"--site {site!r} is no name; write it as in photos.example.org or photos.example.org:8443")
    with _listen(host, port) as listener:
        predictor = Predictor(model, device)
        address, port = listener.getsockname()[:2]
        shown, hosts = f"[{host}]" if ":" in host else host, None
        if ipaddress.ip_address(address).is_loopback:
            hosts = frozenset({"localhost", "127.0.0.1", "[::1]", shown.lower(), site.lower().partition(":")[0]} - {""})
        else:
            print(f"warning: --host {host} lets every machine that reaches this one use the model", file=sys.stderr)
        path = model.resolve()
        name = path.name if path.is_dir() else path.parent.name
        print(f"{name} is at http://{shown}:{port}/  (Ctrl-C stops)", flush=True)
        app = build_app(predictor, name, max_bytes=int(max_mb * 2**20), hosts=hosts, site=site.lower())
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1
        )
        server = Server(config)
        # Ctrl-C interrupts requests; no errors are logged for these
        logging.getLogger("uvicorn.error").addFilter(lambda _: not server.should_exit)
        server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise UserError(f"--port is {port}; it must be 0 to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family)
        # for all its connections: an answer is sent in two pieces, and the second would wait 40 ms for the first
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, UnicodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower().partition(" (")[0]
        raise UserError(f"cannot listen at {host}, port {port}: {reason}; choose another --port or --host") from error
