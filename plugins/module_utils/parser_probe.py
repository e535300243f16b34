"""Runs in an engine's own Python: has the installed SGLang parse and resolve command lines, and says what came of them.

Reads `{"resolve": bool, "command_lines": [argv, ...]}` from standard input; the last line of standard output is a JSON
list with, for each command line: `error` ("" where accepted), `asked` (every setting as parsed), `given` (the names of
those that the arguments set), `resolved` (what the engine would run with; empty without `resolve`) and `log` (its
warnings). One process serves all: importing takes seconds, a command line milliseconds. Self-contained, since it is
handed to that Python as text.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import traceback
from typing import Any


class Warnings(logging.Handler):
    """Collects what SGLang warns about."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.messages.append(record.getMessage())


def parse(server_args: Any, argv: list[str], without_defaults: bool) -> dict[str, Any]:
    """The values that SGLang's parser sees, or without its defaults those that the arguments themselves set."""
    parser = argparse.ArgumentParser(prog="sglang")
    server_args.ServerArgs.add_cli_args(parser)
    if without_defaults:
        for action in parser._actions:
            action.default = argparse.SUPPRESS
    return dict(vars(parser.parse_args(argv)))


def resolve(server_args: Any, argv: list[str], warnings: Warnings) -> dict[str, Any]:
    """What the engine would run with; later releases resolve in a step of their own."""
    arguments = server_args.prepare_server_args(argv)
    logging.getLogger().addHandler(warnings)
    if hasattr(arguments, "resolve_once"):
        arguments.resolve_once()
        return dict(arguments.resolved_dict())
    return dict(vars(arguments))


def examine(server_args: Any, argv: list[str], resolving: bool) -> dict[str, Any]:
    """What SGLang says about one command line; what it sets in the environment is taken back for the next one."""
    warnings, environment = Warnings(), dict(os.environ)
    found: dict[str, Any] = {"error": "", "asked": {}, "given": [], "resolved": {}, "log": warnings.messages}
    words = io.StringIO()
    try:
        with contextlib.redirect_stderr(words):
            found["given"] = list(parse(server_args, argv, without_defaults=True))
            found["asked"] = parse(server_args, argv, without_defaults=False)
            if resolving:
                found["resolved"] = resolve(server_args, argv, warnings)
    except SystemExit:
        found["error"] = words.getvalue().strip().splitlines()[-1]
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        found["error"] = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno} {place.name})"
    finally:
        logging.getLogger().removeHandler(warnings)
        os.environ.clear()
        os.environ.update(environment)
    return found


def main() -> None:
    """Examine what standard input asks for; anything that imports print goes to standard error."""
    request = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        from sglang.srt import server_args  # type: ignore[import-not-found]

        found = [examine(server_args, argv, request["resolve"]) for argv in request["command_lines"]]
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
