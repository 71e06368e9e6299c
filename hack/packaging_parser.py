"""The parser alone, as argparse-manpage asks for it."""

import argparse

from installer.cli.grammar import build_parser


def parser() -> argparse.ArgumentParser:
    return build_parser()[0]
