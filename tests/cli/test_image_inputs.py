"""Conditioning images from files and URLs: whole ones are hashed, everything else is one sentence."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

from fuseproof.cli import image_fetch, image_inputs
from fuseproof.cli.image_inputs import read_image_input, without_credentials
from fuseproof.errors import FuseproofError, UsageError


def encoded(mode: str = "RGB", file_format: str = "PNG", size: tuple[int, int] = (48, 32)) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise(size, 50).convert(mode).save(buffer, file_format)
    return buffer.getvalue()


PNG = encoded()
HTML = b"\n<!doctype html><html>sign in</html>"


RAW = {
    "/ftp": b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1:9/x\r\n\r\n",
    "/file": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n",
    "/circle": b"HTTP/1.1 302 Found\r\nLocation: /circle\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "/nowhere": b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",
    "/short": b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nabc",
    "/garbage": b"\x00\xff garbage\r\n\r\n",
    "/chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\nabc",
    "/length": b"HTTP/1.1 200 OK\r\nContent-Length: banana\r\n\r\nabc",
    "/headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300 + b"\r\n",
    "/header": b"HTTP/1.1 200 OK\r\nA: " + b"b" * 300_000 + b"\r\n\r\n",
    "/words": b"HTTP/1.1 500 bad \x1b[31m\r\nContent-Length: 0\r\n\r\n",
}
TRICKLES = {"/slow-line": b"HTTP/1.1 200 OK\r\nX: ", "/slow-body": b"HTTP/1.1 200 OK\r\n\r\n"}


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path in RAW:
            self.close_connection = True
            self.wfile.write(RAW[self.path])
            return
        if self.path in TRICKLES:
            self.trickle(TRICKLES[self.path])
            return
        if self.path == "/locked" and self.headers["Authorization"] != "Basic dTpw":  # u:p
            self.send_error(401)
            return
        pages = {
            "/cat.png": (200, PNG),
            "/page": (200, HTML),
            "/cut.png": (200, PNG[:200]),
            "/empty": (200, b""),
            "/locked": (200, PNG),
        }
        status, body = pages.get(self.path.partition("?")[0], (404, HTML))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def trickle(self, start: bytes) -> None:
        """A byte every 10 ms, until nobody listens."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.write(start)
            for _ in range(200):
                self.wfile.write(b"a")
                time.sleep(0.01)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stay quiet."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("mode", "file_format"), [("RGB", "PNG"), ("RGBA", "PNG"), ("P", "PNG"), ("L", "JPEG"), ("CMYK", "JPEG")]
)
def test_a_file_is_hashed_and_described_without_conversion(tmp_path: Path, mode: str, file_format: str) -> None:
    content = encoded(mode, file_format)
    path = tmp_path / "cat picture"
    path.write_bytes(content)
    image = read_image_input(str(path))
    assert (hashlib.sha256(content).hexdigest(), 48, 32, mode) == (image.sha256, image.width, image.height, image.mode)
    assert content == image.content


def test_a_url_is_fetched_and_recorded_without_credentials(site: str) -> None:
    image = read_image_input(f"http://{site}/cat.png?token=secret")
    assert (hashlib.sha256(PNG).hexdigest(), f"http://{site}/cat.png") == (image.sha256, image.source)


def test_credentials_leave_a_url() -> None:
    assert "https://host:1/a" == without_credentials("https://user:word@host:1/a?token=b#c")
    assert "a b?.png" == without_credentials("a b?.png")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (HTML, "an HTML page, not an image"),
        (b"version https://git-lfs", "not an image"),
        (PNG[: len(PNG) // 2], "is a broken image"),
        (encoded(file_format="JPEG")[:300], "is a broken image"),
        (PNG[:30], "not an image that can be decoded"),
        (encoded(file_format="TIFF").replace(b"\x00\x01\x04\x00", b"\x77\x01\x04\x00", 1), "not an image that can"),
    ],
    ids=["empty", "html", "text", "cut-png", "cut-jpeg", "only-header", "tiff-without-width"],
)
def test_broken_files_are_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(content)
    with pytest.raises(FuseproofError) as caught:
        read_image_input(str(path))
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(FuseproofError, match="No such file"):
        read_image_input(str(tmp_path / "none.png"))
    with pytest.raises(FuseproofError, match="Is a directory"):
        read_image_input(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "said"),
    [("none", "answered 404"), ("page", "an HTML page"), ("cut.png", "broken image"), ("empty", "is empty")],
)
def test_bad_answers_are_one_sentence(site: str, path: str, said: str) -> None:
    with pytest.raises(FuseproofError, match=said):
        read_image_input(f"http://{site}/{path}")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("ftp", "redirects to another scheme than http and https"),
        ("file", "redirects to another scheme than http and https"),
        ("circle", "redirects more than 5 times"),
        ("nowhere", "Invalid URL in location header"),
        ("short", "was cut short after 3 bytes"),
        ("garbage", "the answer is not HTTP"),
        ("chunks", "was cut short after 0 bytes"),
        ("length", "the answer is not HTTP"),
        ("headers", "is empty"),
        ("header", "the answer is not HTTP"),
        ("words", "answered 500 Internal Server Error"),
        ("a b", "answered 404"),
        ("locked", "answered 401"),
    ],
)
def test_broken_servers_are_one_sentence(site: str, path: str, said: str) -> None:
    with pytest.raises(FuseproofError) as caught:
        read_image_input(f"http://{site}/{path}")
    assert said in caught.value.message
    assert caught.value.message.isprintable()
    assert caught.value.next_step


@pytest.mark.parametrize("path", ["slow-line", "slow-body"])
def test_the_deadline_covers_headers_and_body(site: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte comes in time, and the whole never does."""
    monkeypatch.setattr(image_fetch, "FETCH_LIMIT_S", 0.3)
    started = time.monotonic()
    with pytest.raises(FuseproofError, match=r"was not there after 0\.3 s"):
        read_image_input(f"http://{site}/{path}")
    assert time.monotonic() - started < 1.5


@pytest.mark.parametrize(
    "url",
    ["http://u:p@[::1", "http://u:p@h/a\tb", "http://", "http://u:p@/x", "http://u:p@h:port/", "http://u:p@\ud800/"],
)
def test_what_is_no_url_is_a_usage_error_without_credentials(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_image_input(url)
    assert "u:p" not in caught.value.message


def test_credentials_in_a_url_are_sent_and_not_recorded(site: str) -> None:
    image = read_image_input(f"http://u:p@{site}/locked")
    assert (PNG, f"http://{site}/locked") == (image.content, image.source)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FuseproofError, match="is a pipe or a device"):
        read_image_input(str(tmp_path / "pipe"))


@pytest.mark.parametrize("source", ["", " "])
def test_a_blank_name_is_a_usage_error(source: str) -> None:
    with pytest.raises(UsageError, match="must name a file or an http"):
        read_image_input(source)


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "cat.png").write_bytes(PNG)
    assert PNG == read_image_input("~/cat.png").content


@pytest.mark.parametrize("file_format", ["GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000", "ICO", "PPM", "MPO"])
def test_formats_that_are_read(tmp_path: Path, file_format: str) -> None:
    (tmp_path / "cat").write_bytes(encoded(file_format=file_format, size=(32, 32)))
    assert 32 == read_image_input(str(tmp_path / "cat")).width


@pytest.mark.parametrize("file_format", ["EPS", "TGA", "PCX"])
def test_formats_that_are_not_even_opened(tmp_path: Path, file_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow hands PostScript to Ghostscript."""

    def run_a_program(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", run_a_program)
    (tmp_path / "cat").write_bytes(encoded(file_format=file_format))
    with pytest.raises(FuseproofError, match="not an image that can be decoded"):
        read_image_input(str(tmp_path / "cat"))


def test_unreachable_hosts_and_other_schemes() -> None:
    with pytest.raises(FuseproofError, match="cannot be fetched"):
        read_image_input("http://127.0.0.1:1/a.png")
    with pytest.raises(UsageError, match=r"neither a file nor an http\(s\) URL"):
        read_image_input("file:///etc/hostname")


def test_caps_on_bytes_and_pixels(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(PNG)
    monkeypatch.setattr(image_inputs, "LARGEST_IMAGE_PIXELS", 48 * 32 - 1)
    with pytest.raises(FuseproofError, match="48x32, more than"):
        read_image_input(str(path))
    monkeypatch.setattr(image_inputs, "LARGEST_IMAGE_BYTES", 100)
    for source in (str(path), f"http://{site}/cat.png"):
        with pytest.raises(FuseproofError, match="is larger than"):
            read_image_input(source)
