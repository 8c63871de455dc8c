"""A model hub on this machine: the few answers that huggingface_hub asks for, over real HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

OLD, NEW = "a" * 40, "b" * 40


@dataclass
class FakeHub:
    """Repositories by name: commits with their files, and branches. ``gated`` ones answer 403.

    A file named in ``stalls`` sends half of itself and then waits until ``release`` is set.
    """

    commits: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    stalls: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def add(self, name: str, folder: Path, commit: str = OLD, branch: str = "main") -> None:
        """Publish a folder as one commit of a repository."""
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.commits.setdefault(name, {})[commit] = files
        self.branches.setdefault(name, {})[branch] = commit

    def downloads(self) -> list[str]:
        """Names of the files whose bytes were asked for."""
        fetched = (line for line in self.asked if line.startswith("GET") and "/resolve/" in line)
        return [line.split("/resolve/")[1].split("/", 1)[1] for line in fetched]


def etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.hub, self.path.split("?")[0]
        hub.asked.append(f"{self.command} {path}")
        if path.startswith("/api/models/"):
            owner, name, *rest = path.removeprefix("/api/models/").split("/")
            self._describe(f"{owner}/{name}", rest)
            return
        repository, _, place = path.lstrip("/").partition("/resolve/")
        revision, _, file = place.partition("/")
        commit = self._commit(repository, revision)
        if commit is not None:
            content = hub.commits[repository][commit].get(file)
            if content is None:
                self._refuse(404, "EntryNotFound")
            else:
                self._send_file(file, content, commit)

    def _commit(self, repository: str, revision: str) -> str | None:
        hub = self.hub
        if repository in hub.gated:
            self._refuse(403, "GatedRepo")
        elif repository not in hub.commits:
            self._refuse(404, "RepoNotFound")
        else:
            commit = hub.branches[repository].get(revision, revision)
            if commit in hub.commits[repository]:
                return commit
            self._refuse(404, "RevisionNotFound")
        return None

    def _describe(self, repository: str, rest: list[str]) -> None:
        commit = self._commit(repository, rest[1] if len(rest) > 1 else "main")
        if commit is None:
            return
        if rest[:1] == ["tree"]:
            files = self.hub.commits[repository][commit]
            self._send_json([self._entry(name, content) for name, content in files.items()])
        else:
            self._send_json({"id": repository, "sha": commit, "siblings": []})

    def _entry(self, name: str, content: bytes) -> dict[str, object]:
        size = self.hub.sizes.get(name, len(content))
        return {"type": "file", "path": name, "size": size, "oid": etag(content)[:40]}

    def _send_json(self, values: object) -> None:
        self._send(json.dumps(values).encode(), {"Content-Type": "application/json"})

    def _send_file(self, name: str, content: bytes, commit: str) -> None:
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag(content)[:40]}"', "Accept-Ranges": "bytes"}
        if self.command == "GET" and Path(name).name in self.hub.stalls:
            self.send_response(200)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.release.wait(60)
            self.close_connection = True
            return
        if self.command == "HEAD" and name in self.hub.sizes:
            self.send_response(200)
            for key, value in {**headers, "Content-Length": str(self.hub.sizes[name])}.items():
                self.send_header(key, value)
            self.end_headers()
            return
        self._send(content, headers)

    def _send(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub behind a port of its own while the block runs."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
