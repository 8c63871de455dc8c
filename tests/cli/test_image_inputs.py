"""Conditioning images from files and URLs: whole ones are hashed, everything else is one sentence."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from PIL import Image

from fuseproof.cli import image_inputs
from fuseproof.cli.image_inputs import read_image_input, without_credentials
from fuseproof.errors import FuseproofError, UsageError


def encoded(mode: str = "RGB", file_format: str = "PNG", size: tuple[int, int] = (48, 32)) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise(size, 50).convert(mode).save(buffer, file_format)
    return buffer.getvalue()


PNG = encoded()
HTML = b"\n<!doctype html><html>sign in</html>"


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        pages = {"/cat.png": (200, PNG), "/page": (200, HTML), "/cut.png": (200, PNG[:200]), "/empty": (200, b"")}
        status, body = pages.get(self.path.partition("?")[0], (404, HTML))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stay quiet."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Site)
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
