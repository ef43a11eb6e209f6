"""The command `certimap`: its subcommands, and what an error looks like."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import certimap
from certimap.cli import convert, info, learn, solve
from certimap.errors import CertimapError

FAILED = 2
INTERRUPTED = 130
_LAZY = {"bench": "certimap.cli.bench"}


class _LazyGroup(TyperGroup):
    """A group some of whose subcommands are imported only when asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_LAZY]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _LAZY:
            return typer.main.get_command(importlib.import_module(_LAZY[cmd_name]).app)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=_LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Maximum a posteriori inference with a proof of how good the answer is.",
)
app.command("solve")(solve.solve)
app.command("info")(info.info)
app.command("convert")(convert.convert)
app.command("learn")(learn.learn)


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

    An error that the user can act on is one sentence on standard error and exit code 2; a traceback means
    a bug in certimap. An answer without its certificate is no error: it exits 0 and says so first.
    """
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        code = app(args=given, standalone_mode=False, prog_name="certimap")
    except CertimapError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # the reader has gone; nothing is left to flush to
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        return _fail(f"{error.filename}: {error.strerror}")
    except MemoryError:
        return _fail("memory ran out; lower --max-memory or --max-edges, or ask a smaller query")
    except Exception as error:
        # Usage errors of the option parser; their class depends on typer's version.
        if type(error).__name__ == "Abort":
            code = INTERRUPTED
        elif hasattr(error, "format_message"):
            return _usage_error(error)
        else:
            raise
    if code == INTERRUPTED:
        print("certimap: interrupted before there was an answer", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _usage_error(error: Any) -> int:
    """Report what the option parser refused."""
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    command = getattr(getattr(error, "ctx", None), "command_path", "certimap")
    return _fail(f"{message}; {command} --help lists what is accepted")


def _fail(message: str) -> int:
    print(f"certimap: {message}", file=sys.stderr)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
