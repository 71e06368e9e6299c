"""Runs inside the machine: commands come in over a virtio port, and what they say and end with goes out.

A line each way, JSON. In: {"argv": [...], "input": "..."}. Out: {"boot": ID} once, when it is ready; then
for each command {"out": TEXT} and {"err": TEXT} as they come, and at last {"code": N}. Standard library
only, and one command at a time: whoever wants more starts a unit.
"""

import codecs
import json
import os
import selectors
import subprocess
from pathlib import Path
from typing import Any, TextIO

PORT = Path("/dev/virtio-ports/agent")


def run(argv: list[str], words: str, port: TextIO) -> int:
    """Runs a command to its end, and tells what it says meanwhile; 127 if it cannot be started."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
        )
    except OSError as error:
        say(port, err=f"{error}\n")
        return 127
    assert process.stdin is not None
    try:
        process.stdin.write(words.encode())
        process.stdin.close()
    except BrokenPipeError:
        pass
    with selectors.DefaultSelector() as ready:
        for name, stream in (("out", process.stdout), ("err", process.stderr)):
            assert stream is not None
            # A piece may end in the middle of a character.
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            ready.register(stream, selectors.EVENT_READ, (name, decoder))
        while ready.get_map():
            for key, _ in ready.select():
                name, decoder = key.data
                chunk = os.read(key.fd, 1 << 16)
                if chunk:
                    say(port, **{name: decoder.decode(chunk)})
                else:
                    ready.unregister(key.fileobj)
    return process.wait()


def say(port: TextIO, **message: Any) -> None:
    port.write(json.dumps(message) + "\n")
    port.flush()


def main() -> None:
    descriptor = os.open(PORT, os.O_RDWR | os.O_CLOEXEC)
    with os.fdopen(descriptor, "r") as requests, os.fdopen(os.dup(descriptor), "w") as port:
        say(port, boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        for line in requests:
            request = json.loads(line)
            say(port, code=run(request["argv"], request.get("input", ""), port))


if __name__ == "__main__":
    main()
