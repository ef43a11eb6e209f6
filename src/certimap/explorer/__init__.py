"""A page in the browser that shows a model and answers each click with a certified explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from certimap.core.named import needed

if TYPE_CHECKING:
    from certimap.explorer.server import Explorer


def explore(model: Any, *, path: str = "MODEL", port: int = 0) -> Explorer:
    """Serve a page that shows a model and answers each click with a certified explanation; return at once.

    `model`: as for `map_query`. `path`: its file, in the commands that the page offers. `port`: of 127.0.0.1; 0
    takes a free one. A notebook shows the page; `url`, with a secret token, is its address. It ends by `stop()`,
    Ctrl-C in `wait()`, and with the process. Nothing is fetched from elsewhere, or written. Raises QueryError for
    a port that cannot be used, and MissingDependency without `pip install 'certimap[explore]'`.
    """
    for module in ("starlette", "uvicorn"):
        needed(module, "the explorer needs starlette and uvicorn: pip install 'certimap[explore]'")
    from certimap.explorer.server import Explorer

    return Explorer(model, path, port)
