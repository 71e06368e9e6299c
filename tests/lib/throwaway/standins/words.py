"""What the stand-in for cri-resmgr says, as the real one does."""

import os
from typing import NoReturn


def log(level: str, text: str) -> None:
    head = f"{level}:" if "JOURNAL_STREAM" in os.environ else f"??? {level}1121 23:00:00.000000 1 main.go:7]"
    # os.write: one line at once, threads or not.
    os.write(2, f"{head} [ resource-manager ] {text}\n".encode())


def fatal(text: str, code: int = 1) -> NoReturn:
    log("F", text)
    os._exit(code)


def panic(text: str) -> NoReturn:
    """As the Go runtime ends a program."""
    os.write(2, f"panic: {text}\n\ngoroutine 1 [running]:\n".encode())
    os._exit(2)
