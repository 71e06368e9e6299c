"""A registry on a node, whose images take their time: for pulls in flight while something happens."""

from __future__ import annotations

from tests.cluster.world import KubeNode
from tests.lib.throwaway.containers import ctr
from tests.lib.throwaway.furnish import IMAGE

_PORT = 5000
#: IMAGE, by its name in the registry. containerd speaks plain HTTP with a registry on the loopback.
PULLED = f"127.0.0.1:{_PORT}/throwaway/busybox:1"
SECONDS = 1.5  # that a pull takes at least

_PROGRAM = """
import hashlib, http.server, json, pathlib, sys, time

store = pathlib.Path("/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256")
port, seconds, blobs = int(sys.argv[2]), float(sys.argv[3]), {}

def load(digest):
    return json.loads((store / digest.removeprefix("sha256:")).read_bytes())

def add(content):
    data = json.dumps(content).encode()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    blobs[digest] = data
    return digest, len(data)

# An image of its own: kubelet lets nobody who did not pull it use one that it has pulled.
manifest = load(sys.argv[1])
config = manifest["config"]
config["digest"], config["size"] = add({**load(config["digest"]), "author": "registry"})
tagged, _ = add(manifest)

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        digest = self.path.rpartition("/")[2]
        if "/manifests/" in self.path and not digest.startswith("sha256:"):
            digest = tagged
            time.sleep(seconds)
        data = blobs.get(digest) or (store / digest.removeprefix("sha256:")).read_bytes() if digest else b""
        kind = "vnd.oci.image.manifest.v1+json" if digest == tagged else "octet-stream"
        self.send_response(200)
        self.send_header("Content-Type", f"application/{kind}")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def serve_slowly(node: KubeNode) -> None:
    """Until its host ends."""
    listed = ctr(node.host, "images", "list", f"name=={IMAGE}").splitlines()[1]
    (digest,) = (word for word in listed.split() if word.startswith("sha256:"))
    argv = ("/usr/bin/python3", "-c", _PROGRAM, digest, str(_PORT), str(SECONDS))
    node.host.run("systemd-run", "--quiet", "--unit=slow-registry", *argv)
