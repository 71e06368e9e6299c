"""Servers that a build of an image asks, on this machine's loopback."""

import gzip
import hashlib
import http.server
import io
import json
import re
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MIRRORS = "http://deb.debian.org"
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Its address: HOST:PORT."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The files of a directory; yields their URL."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(directory))  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: it is a test's."""

    with serving(Handler) as address:
        yield f"http://{address}"


@contextmanager
def snapshots(asked: list[str]) -> Iterator[str]:
    """Debian's archive as snapshot.debian.org has it, but of today: whatever time is asked for, each path
    leads to the mirrors. Yields the URL to give as the mirror; `asked` gets the paths."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            found = re.fullmatch(r"/archive/(debian|debian-security)/\d{8}T\d{6}Z/(.+)", self.path)
            self.send_response(302 if found else 404)
            if found:
                self.send_header("Location", f"{MIRRORS}/{found[1]}/{found[2]}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: it is a test's."""

    with serving(Handler) as address:
        yield f"http://{address}/archive"


class Registry:
    """The content of a registry with one image for two architectures. `digest` is that of its index."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[str, bytes]] = {}
        images = [self._image(name) for name in ("amd64", "arm64")]
        self.digest = self._add(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": images})[
            "digest"
        ]

    def _image(self, architecture: str) -> dict[str, Any]:
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as tar:
            tar.addfile(tarfile.TarInfo(architecture))
        content = raw.getvalue()
        layers = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]}
        platform = {"architecture": architecture, "os": "linux"}
        config = self._add(CONFIG, {**platform, "config": {}, "rootfs": layers})
        layer = self._add(LAYER, gzip.compress(content, mtime=0))
        parts = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]}
        return {**self._add(MANIFEST, parts), "platform": platform}

    def _add(self, kind: str, content: Mapping[str, object] | bytes) -> dict[str, Any]:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.objects[digest] = (kind, data)
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    @contextmanager
    def serve(self) -> Iterator[str]:
        """By https://distribution.github.io/distribution/spec/api/, as far as a pull goes. Each name and tag
        is the image. Yields its address."""
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = self.path.rpartition("/")[2]
                digest = wanted if wanted.startswith("sha256:") else registry.digest
                kind, data = registry.objects.get(digest, ("", b""))
                self.send_response(200 if kind else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Docker-Content-Digest", digest)
                self.end_headers()
                self.wfile.write(data if self.command == "GET" else b"")

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: it is a test's."""

        with serving(Handler) as address:
            yield address
