"""The live page: served from this machine to itself, written anew whenever the records have changed."""

from __future__ import annotations

import hashlib
import threading
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ncollapse.report.page import make_report, render

WATCHED = ("config.json", "env.json", "history.jsonl", "history.jsonl.gz", "summary.json", "snapshot.safetensors")


def fingerprint(folder: Path) -> str:
    """A short hash of the names, sizes and times of all record files; it changes when a run has gone on."""
    digest = hashlib.sha256()
    for pattern in ("", "*/", "*/*/"):
        for name in WATCHED:
            for file in sorted(_find(folder, pattern + name)):
                try:
                    stat = file.stat()
                except OSError:
                    continue
                digest.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode(errors="backslashreplace"))
    return digest.hexdigest()[:16]


def _find(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern))
    except OSError:  # a folder that may not be read
        return []


def make_server(folder: str | Path, host: str = "127.0.0.1", port: int = 8377) -> ThreadingHTTPServer:
    """A server of the page at / and of the records' fingerprint at /state; nothing else of the folder is reachable.

    Call `serve_forever` on it. Port 0 takes any free port (`server_address` says which).
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port must lie between 0 and 65535, got {port}")
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {str(root)!r} to serve a report of")
    lock = threading.Lock()
    kept: dict[str, bytes] = {}

    def page() -> bytes:
        with lock:
            state = fingerprint(root)
            if state not in kept:
                text = render(make_report(root), live=state)
                kept.clear()
                kept[state] = text.encode(errors="backslashreplace")
            return kept[state]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            route = self.path.partition("?")[0]
            if not self.addressed_here():
                self.answer(403, "text/plain", b"this page answers to the name of its own machine only")
            elif route == "/state":
                self.answer(200, "text/plain", fingerprint(root).encode())
            elif route in ("/", "/report.html"):
                try:
                    self.answer(200, "text/html", page())
                except Exception as error:  # the next record may mend it: the page asks again
                    message = escape(str(error) or type(error).__name__)
                    self.answer(200, "text/html", WAITING.format(message=message).encode(errors="backslashreplace"))
            else:
                self.answer(404, "text/plain", b"only / and /state are served")

        def addressed_here(self) -> bool:
            # A page elsewhere could point a name of its own at this address; loopback answers to loopback's names.
            name = self.headers.get("Host", "").rpartition(":")[0].strip("[]") or self.headers.get("Host", "")
            return host not in ("127.0.0.1", "localhost", "::1") or name in ("127.0.0.1", "localhost", "::1")

        def answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    return ThreadingHTTPServer((host, port), Handler)


WAITING = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="3">
<title>ncollapse</title><p>{message}</p><p>Waiting for the first record.</p></html>"""
