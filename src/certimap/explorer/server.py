"""The page's server: who may ask, what is refused, and answers as server-sent events."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from certimap.ask.replay import written_evidence
from certimap.core.arguments import Record, check_whole, is_dict, shown
from certimap.core.domain import Categorical
from certimap.core.model import Model
from certimap.core.result import json_ready
from certimap.densities.linear_gaussian import LinearGaussianNetwork
from certimap.errors import CertimapError, QueryError
from certimap.explanations.reports.page import page_of
from certimap.explorer.jobs import Job, Tab
from certimap.interop import as_model
from certimap.io.native import encoded_label
from certimap.io.text_tables import read_text_table
from certimap.networks.network import Network
from certimap.plots.series import above as parents_above

MOST_BYTES = 32_000_000  # of a request
MOST_TABS = 32  # that are remembered
_FRAMES = "'self' http://localhost:* http://127.0.0.1:* vscode-webview:"  # of notebooks
_OWN = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:"
_HEADERS = [("content-security-policy", f"{_OWN}; frame-ancestors {_FRAMES}"), ("cache-control", "no-store")]
_HEADERS.extend([("referrer-policy", "no-referrer"), ("x-content-type-options", "nosniff")])
_NULL_OR_LIST, _NUMBER = (list, type(None)), (int, float)
_QUESTION: Record = {"tab": str, "query": _NULL_OR_LIST, "evidence": dict, "do": dict, "constraints": list}
_QUESTION.update(top_k=_NUMBER, epsilon=_NUMBER, time_limit=_NUMBER)
_NAMES: dict[Any, str] = {str: "text", _NULL_OR_LIST: "null or a list", dict: "an object", list: "a list"}


async def _read(request: Request, accepted: Record) -> Record:
    """Return the content of a request, which has the accepted entries; refuse any other in a sentence."""
    try:
        given: Any = json.loads(await request.body())
    except (ValueError, RecursionError):
        given = None
    if not is_dict(given) or set(given) != set(accepted):
        raise QueryError(f"the request is {shown(given)}; expected a JSON object with {', '.join(accepted)}")
    for name, kind in accepted.items():
        if not isinstance(given[name], kind):
            raise QueryError(f"{name} is {shown(given[name])}; expected {_NAMES.get(kind, 'a number')}")
    return given


class Explorer:
    """A page that is served at `url`, and shown by a notebook, until `stop`, or the end of the process."""

    def __init__(self, model: Any, path: str, port: int) -> None:
        accepted, listening = "a free port from 1 to 65535, or 0", socket.socket()
        self._model, self._path, self._token = as_model(model), path, secrets.token_urlsafe(24)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", check_whole("port", port, accepted, QueryError)))
            listening.listen()  # from now on; the server answers a little later
        except (OSError, OverflowError) as error:
            raise QueryError(f"port {port} cannot be used ({error}); expected {accepted}") from None
        self._hosts = [f"{name}:{listening.getsockname()[1]}" for name in ("127.0.0.1", "localhost")]
        self.url = f"http://{self._hosts[0]}/{self._token}/"
        self._tabs: dict[str, Tab] = {}
        posts: Record = {kind: partial(self._ask, kind) for kind in ("answer", "explain", "next")}
        posts |= {"stop": self._stop, "report": self._save, "record": self._save, "row": self._row}
        routes = [Route(f"/{name}", answer, methods=["POST"]) for name, answer in posts.items()]
        page = Mount("/", StaticFiles(directory=Path(__file__).parent / "page", html=True))
        below = Mount(f"/{self._token}", routes=[*routes, Route("/model", self._described), page])

        def refused(_: Request, error: Exception) -> Response:
            return JSONResponse({"error": str(error)}, 400)

        self._app = Starlette(routes=[below], exception_handlers={CertimapError: refused})
        how: Any = {"interface": "asgi3", "log_level": "critical", "lifespan": "off", "ws": "none"}
        config = uvicorn.Config(self._guarded, headers=_HEADERS, timeout_graceful_shutdown=1, **how)
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, args=([listening],), name="certimap explore", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the page is no longer served; Ctrl-C ends it."""
        with suppress(KeyboardInterrupt):
            while self._thread.is_alive():
                self._thread.join(0.2)
        self.stop()

    def stop(self) -> None:
        """End all queries and the server."""
        for tab in self._tabs.values():
            tab.stop()
        self._server.should_exit = True
        self._thread.join(5.0)

    def __repr__(self) -> str:
        return f"Explorer({self.url!r})"

    def _repr_html_(self) -> str:
        return f"<iframe src='{self.url}' title='certimap' style='width: 100%; height: 45rem; border: 0'></iframe>"

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests to this machine, from its page, that know the token; refuse others in a sentence."""
        headers, refused = Request(scope).headers, ""
        if headers.get("host") not in self._hosts:
            refused = "the host is not this machine's"
        elif headers.get("origin", f"http://{self._hosts[0]}").removeprefix("http://") not in self._hosts:
            refused = "the request comes from another page"
        elif not secrets.compare_digest(f"{scope['path']}/".split("/")[1].encode(), self._token.encode()):
            refused = "the token in the address is not the right one"
        elif "transfer-encoding" in headers or int(headers.get("content-length", 0)) > MOST_BYTES:
            refused = f"the request is longer than {MOST_BYTES:,} bytes"
        told = {"error": f"{refused}; open the address that certimap printed"}
        await (JSONResponse(told, 403) if refused else self._app)(scope, receive, send)

    def _tab(self, name: str) -> Tab:
        """Return a tab; the one that was quiet for longest makes room."""
        self._tabs[name] = self._tabs.pop(name, None) or Tab(self._model)
        if len(self._tabs) > MOST_TABS:
            self._tabs.pop(next(iter(self._tabs))).stop()
        return self._tabs[name]

    def _described(self, request: Request) -> Response:
        """Tell what the page draws: variables with states, and edges (positions) among variables not hidden."""
        model, over = self._model, _parents(self._model)

        place = {name: k for k, name in enumerate(n for n in model.domain.names if n not in model.hidden)}
        told: Record = {"path": self._path, "causal": type(model).do is not Model.do, "variables": [], "edges": []}
        for v in map(model.domain.__getitem__, place):
            labels = [encoded_label(x, v.name) for x in v.states] if isinstance(v, Categorical) else None
            told["variables"].append([v.name, labels])
            for p in (above := list(over[v.name])):  # those of a hidden one join the list
                above += over[p] if p in model.hidden else []
            told["edges"] += [[k, place[v.name]] for k in sorted({place[p] for p in above if p in place})]
        return JSONResponse(json_ready(told))

    async def _ask(self, kind: str, request: Request) -> Response:
        given, events = await _read(request, _QUESTION), asyncio.Queue[tuple[str, Any]]()
        loop = asyncio.get_running_loop()

        def emit(name: str, data: Any) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(events.put_nowait, (name, data))

        tab = self._tab(given["tab"])
        tab.begin(job := Job.read(tab.model, kind, given, self._path, emit))

        async def told() -> AsyncGenerator[str]:
            try:
                while (event := await events.get())[0] != "end":
                    yield f"event: {event[0]}\ndata: {json.dumps(event[1], allow_nan=False)}\n\n"
            finally:
                job.halt.stop()  # the reader has gone, or all is told

        return StreamingResponse(told(), media_type="text/event-stream")

    async def _stop(self, request: Request) -> Response:
        self._tab((await _read(request, {"tab": str}))["tab"]).stop()
        return JSONResponse({})

    async def _save(self, request: Request) -> Response:
        """Return the tab's last answer as a report, or as `certimap solve -o` writes it."""
        job = self._tab((await _read(request, {"tab": str}))["tab"]).last
        if job is None or job.result is None:
            raise QueryError("there is no answer to save yet; wait for one")
        record, is_report = job.record(job.result), request.url.path.endswith("/report")
        return Response(page_of([("answer.json", 1, record)]) if is_report else json.dumps(record, indent=2))

    async def _row(self, request: Request) -> Response:
        """Return a row of a table, numbered from 1, as evidence."""
        given = await _read(request, {"name": str, "text": str, "row": int})
        table, domain = read_text_table(given["name"], text=given["text"]), self._model.domain
        if not 0 < given["row"] <= (n := len(table.rows)):
            raise QueryError(f"row {given['row']} is not in the table; expected 1 to {n}")
        cells = enumerate(zip(table.names, table.checked_row(given["row"] - 1), strict=True))
        known = {name: table.value(domain, k, cell, lenient=True) for k, (name, cell) in cells if name in domain}
        ignored = [name for name in table.names if name not in domain]
        return JSONResponse({"evidence": written_evidence(domain, known), "rows": n, "ignored": ignored})


def _parents(model: Model | None) -> dict[str, list[str]]:
    """Return the names of each variable's parents; in a Markov network, of its neighbours further up."""
    if isinstance(model, LinearGaussianNetwork):
        return _parents(model.discrete) | {node.variable: list(node.parents) for node in model.nodes}
    names = () if model is None else model.domain.names
    over = parents_above(model) if isinstance(model, Network) else [()] * len(names)
    return {name: [names[p] for p in own] for name, own in zip(names, over, strict=True)}
