"""The live page: served from this machine to itself; an open page is sent what has changed in the records."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ncollapse.report.content import Report
from ncollapse.report.html import digest, render, render_main, render_parts
from ncollapse.report.layout import make_report

WATCHED = (
    *("config.json", "env.json", "history.jsonl", "history.jsonl.gz", "summary.json"),
    *("snapshot.safetensors", "epochs.safetensors"),
)
REMEMBERED = 32
"""So many earlier states are known; a page that is further behind is sent everything."""


def fingerprint(folder: Path) -> str:
    """A short hash of the names, sizes and times of all record files; it changes when a run has gone on."""
    found = hashlib.sha256()
    for pattern in ("", "*/", "*/*/"):
        for name in WATCHED:
            for file in sorted(_find(folder, pattern + name)):
                try:
                    stat = file.stat()
                except OSError:
                    continue
                found.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode(errors="backslashreplace"))
    return found.hexdigest()[:16]


def _find(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern))
    except OSError:  # a folder that may not be read
        return []


@dataclass(frozen=True)
class State:
    """The page at one state of the records: its report, and a hash of each part and figure."""

    name: str
    report: Report
    hashes: dict[str, str]
    structure: tuple[str, ...]


class LivePage:
    """The page of a folder while its runs go on: made anew when the records have changed, and never twice at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.current: State | None = None
        self.earlier: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {}

    def whole(self) -> bytes:
        """The whole page."""
        with self.lock:
            state = self._update()
            return render(state.report, live=state.name).encode(errors="backslashreplace")

    def changes(self, since: str) -> bytes:
        """What has changed since an earlier state, as JSON: parts of the page as HTML, figures as specifications.

        Where sections have come or gone, all of the page's main part is sent instead of its parts.
        """
        with self.lock:
            state = self._update()
            known, structure = self.earlier.get(since, ({}, ()))
            changed = {name for name, value in state.hashes.items() if known.get(name) != value}
            figures = {f.id: f.spec for f in state.report.figures if f"figure-{f.id}" in changed}
            answer: dict[str, Any] = {"state": state.name, "parts": {}, "figures": figures}
            if structure != state.structure:
                answer |= render_main(state.report)
            else:
                answer["parts"] = {k: v for k, v in render_parts(state.report).items() if k in changed}
            return json.dumps(answer, allow_nan=False).encode()

    def _update(self) -> State:
        name = fingerprint(self.folder)
        if self.current is None or self.current.name != name:
            report = make_report(self.folder)
            hashes = {part: digest(text) for part, text in render_parts(report).items() if part != "statuses"}
            hashes |= {f"figure-{f.id}": digest(json.dumps(f.spec)) for f in report.figures}
            hashes["statuses"] = name
            structure = tuple(
                name for s in report.sections for name in (s.id, *(t.id for t in s.tables), *(f.id for f in s.figures))
            )
            self.current = State(name, report, hashes, structure)
            self.earlier[name] = hashes, structure
            while len(self.earlier) > REMEMBERED:
                self.earlier.pop(next(iter(self.earlier)))
        return self.current


def make_server(folder: str | Path, host: str = "127.0.0.1", port: int = 8377) -> ThreadingHTTPServer:
    """A server of the page at /, of the records' state at /state and of changes at /update; nothing else is reachable.

    Call `serve_forever` on it. Port 0 takes any free port (`server_address` says which).
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port: expected a number from 0 to 65535, got {port}")
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {str(root)!r} to serve a report of")
    page = LivePage(root)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if not self.addressed_here():
                self.answer(403, "text/plain", b"this page answers to the name of its own machine only")
            elif address.path == "/state":
                self.answer(200, "text/plain", fingerprint(root).encode())
            elif address.path == "/update":
                since = parse_qs(address.query).get("since", [""])[0]
                self.answer_with("application/json", lambda: page.changes(since))
            elif address.path in ("/", "/report.html"):
                self.answer_with("text/html", page.whole)
            else:
                self.answer(404, "text/plain", b"only /, /state and /update are served")

        def answer_with(self, kind: str, make: Any) -> None:
            try:
                self.answer(200, kind, make())
            except Exception as error:  # no runs yet, or one that the next record may mend: the page asks again
                message = escape(str(error) or type(error).__name__)
                self.answer(200, "text/html", WAITING.format(message=message).encode(errors="backslashreplace"))

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

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise OSError(f"host {host}, port {port}: cannot be served: {error.strerror or error}") from error


WAITING = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="3">
<title>ncollapse</title><p>{message}</p><p>Waiting for the first record.</p></html>"""
