"""The command `certimap`: its subcommands and its error messages."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import certimap
from certimap.cli import commands, info, learn, solve
from certimap.cli.options import spread
from certimap.errors import CertimapError, MissingDependency

FAILED = 2
UNFORESEEN = 70
INTERRUPTED = 130
TRACEBACK = "CERTIMAP_TRACEBACK"
_LAB = "certimap_lab"


class _Interrupted(Exception):
    """Ctrl-C in a form that the command line's library passes on; it turns KeyboardInterrupt into an exit code."""


class _LazyGroup(TyperGroup):
    """The group of all subcommands; `bench` is imported from its own package on call."""

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        try:
            return super().make_context(*arguments, **extra)
        except KeyboardInterrupt:
            raise _Interrupted from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _Interrupted from None

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(["bench"] if _has_lab() else [])]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name != "bench":
            return super().get_command(ctx, cmd_name)
        if not _has_lab():
            text = "certimap bench is in a package of its own, certimap-lab, which is not installed"
            raise MissingDependency(f"{text}; expected pip install -e . -e lab in a clone of the project")
        return typer.main.get_command(importlib.import_module(f"{_LAB}.cli.bench").app)


def _has_lab() -> bool:
    """Whether the separate package with the benchmarks is installed."""
    return importlib.util.find_spec(_LAB) is not None


app = typer.Typer(cls=_LazyGroup, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
for _command in (solve.solve, info.info, learn.learn, *commands.SHORT):
    app.command(_command.__name__.rstrip("_"))(spread(_command))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"certimap {certimap.__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Maximum a posteriori inference with a proof of how good the answer is."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code.

    A user's error gives one sentence on standard error and exit code 2. Any other error gives one sentence and
    exit code 70, and a traceback only if the environment sets CERTIMAP_TRACEBACK. An answer without the requested
    certificate is not an error: the output begins with a warning, and the exit code is 0.
    """
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape characters that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = app(args=given, standalone_mode=False, prog_name="certimap")
            if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
                sys.stdout.flush()  # so that errors of writing are reported like all others
    except (KeyboardInterrupt, _Interrupted):
        return _fail("interrupted before there was an answer", INTERRUPTED)
    except BrokenPipeError:
        sys.stdout = None  # the reader has gone; nothing is left to flush to
        return 1
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        if type(error).__name__ == "Abort":
            return _fail("interrupted before there was an answer", INTERRUPTED)
        return _report(error)
    return code if isinstance(code, int) else 0


def _report(error: Exception) -> int:
    """Print an error as one sentence; return the exit code."""
    if isinstance(error, CertimapError):
        return _fail(str(error))
    if isinstance(error, OSError) and error.filename is not None:
        return _fail(f"{error.filename}: {error.strerror}")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        sys.stdout = None  # its buffer cannot be written either
        return _fail(f"standard output: {error.strerror}")
    if isinstance(error, MemoryError):
        return _fail("memory ran out; lower --max-memory or --max-edges, or ask a smaller query")
    if hasattr(error, "format_message"):
        found: Any = error  # of the option parser; its class depends on typer's version
        message = " ".join(str(found.format_message()).split()).rstrip(".")
        command = getattr(getattr(found, "ctx", None), "command_path", "certimap")
        return _fail(f"{message}; {command} --help lists what is accepted")
    said = " ".join(str(error).split()) or "no message"
    what = f"an error that certimap did not foresee ({type(error).__name__}: {said})"
    return _fail(f"{what}; {TRACEBACK}=1 shows where it happened, for a report", UNFORESEEN)


def _show_warning(message: Warning | str, *_: Any) -> None:
    """Print a warning as one line."""
    print(f"certimap: warning: {message}", file=sys.stderr)


def _fail(message: str, code: int = FAILED) -> int:
    print(f"certimap: {' '.join(message.split())}", file=sys.stderr)
    return code
