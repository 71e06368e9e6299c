"""What the stand-in kubelet answers over HTTP: healthz, and its pods.

As the real one has it: healthz for everybody on the host; /pods without a question on the read-only port,
where the configuration opens one, and on 10250 with TLS to whoever has a token that may read it.
"""

import socket
import time
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress

HEALTHZ = ("127.0.0.1", 10248)
SECURE = ("0.0.0.0", 10250)
READ_ONLY = 10255

#: Its own certificate, where kubelet keeps one that it has signed itself.
CERTIFICATE, KEY = "/var/lib/kubelet/pki/kubelet.crt", "/var/lib/kubelet/pki/kubelet.key"

#: A path and a token (empty: none); a status with its words, and a body.
Answer = Callable[[str, str], tuple[str, str]]

UNKNOWN = "404 Not Found", "404 page not found"


#: Seconds between two tries at a port that another process has taken: kubelet runs on without its healthz.
AGAIN = 5


def serve_healthz(answer: Answer, say: Callable[[str, str], None]) -> None:
    """As kubelet does: where the port is taken, it says so, runs on, and tries it again."""
    try:
        serve(HEALTHZ, answer)
    except OSError as error:
        say("E", f'"Failed to start healthz server" err="listen tcp {HEALTHZ[0]}:{HEALTHZ[1]}: {error}"')
        start_new_thread(_serve_later, (answer, say))


def _serve_later(answer: Answer, say: Callable[[str, str], None]) -> None:
    time.sleep(AGAIN)
    serve_healthz(answer, say)


def serve(address: tuple[str, int], answer: Answer, secure: bool = False) -> None:
    """Listens when this returns. Raises OSError when the port is taken."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(address)
    server.listen(64)
    start_new_thread(_accept, (server, answer, secure))


def _accept(server: socket.socket, answer: Answer, secure: bool) -> None:
    while True:
        client, _ = server.accept()
        start_new_thread(_answer, (client, answer, secure))


def _answer(client: socket.socket, answer: Answer, secure: bool) -> None:
    with suppress(OSError, IndexError), client:
        client.settimeout(5)
        stream = _encrypted(client) if secure else client
        with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                data = stream.recv(4096)
                if not data:
                    return
                head += data
            path = head.split(b" ")[1].split(b"?")[0].decode()
            status, body = answer(path, _token(head.decode("latin-1")))
            kind = "application/json" if body.startswith("{") else "text/plain; charset=utf-8"
            content = body.encode()
            stream.sendall(
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + content
            )


def _encrypted(client: socket.socket) -> socket.socket:
    import ssl  # here: a kubelet that nobody asks starts without it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    return context.wrap_socket(client, server_side=True)


def _token(head: str) -> str:
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "authorization":
            return value.strip().removeprefix("Bearer ")
    return ""
