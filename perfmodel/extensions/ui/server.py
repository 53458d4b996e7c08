"""The server of `perfmodel ui`: on this machine only, for the holder of the secret address.

The token of the address becomes a cookie. Every request must name this machine as its host and
carry the cookie; one that another page makes (Origin) is refused. Answers are computed in one
thread and sent as they come (server-sent events).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

import perfmodel
from perfmodel import api
from perfmodel.base.errors import PerfModelError
from perfmodel.execution.executor import keep_memory
from perfmodel.extensions.ui.answering import Answers
from perfmodel.extensions.ui.files import LOAD, MOST_BYTES, Files
from perfmodel.extensions.ui.knobs import SCALES
from perfmodel.reports.html import load_template

HERE = Path(__file__).parent
COOKIE = "perfmodel_ui_{port}"
LOOPBACK = "127.0.0.1"
FILES = ("ui.js", "ui.css")
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ENTER = '<meta http-equiv="refresh" content="0;url={}"><title>perfmodel</title>'
"""A page that goes on to another address."""
Handler = Callable[["Site", Request], Awaitable[Response]]


@dataclass(slots=True)
class Site:
    """What the page may read and first shows, its secret, and the one thread that answers."""

    files: Files
    port: int
    start: Mapping[str, str]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    answers: Answers = field(init=False)

    def __post_init__(self) -> None:
        self.answers = Answers(self.files)

    @property
    def hosts(self) -> tuple[str, ...]:
        """How a request may name this server."""
        return tuple(f"{name}:{self.port}" for name in (LOOPBACK, "localhost"))

    @property
    def cookie(self) -> str:
        """The name of the cookie: browsers keep one set of cookies for all ports of a machine."""
        return COOKIE.format(port=self.port)

    @property
    def address(self) -> str:
        """Where the page is, with the secret."""
        return f"http://{LOOPBACK}:{self.port}/?token={self.token}"

    def refusal(self, request: Request) -> Response | None:
        """Why a request is refused, or None."""
        if request.headers.get("host") not in self.hosts:
            return _plain("This server answers only requests from its own machine.", 421)
        origin = request.headers.get("origin")
        if origin is not None and origin not in [f"http://{one}" for one in self.hosts]:
            return _plain("Requests from other pages are refused.", 403)
        cookie = request.cookies.get(self.cookie, "")
        if not hmac.compare_digest(cookie.encode(), self.token.encode()):
            return _plain("Open the address that `perfmodel ui` printed.", 403)
        return None


def _plain(words: str, status: int) -> Response:
    return PlainTextResponse(words, status, headers=HEADERS)


async def _home(site: Site, request: Request) -> Response:
    """The page, and the way in: the token becomes a cookie."""
    token = request.query_params.get("token", "")
    is_own = request.headers.get("host") in site.hosts
    if is_own and hmac.compare_digest(token.encode(), site.token.encode()):
        # The secret leaves the address, so that it is in no history and no referrer. A redirect
        # would not carry the cookie where the browser comes from a file.
        response = HTMLResponse(ENTER.format("/"), headers=HEADERS)
        response.set_cookie(site.cookie, site.token, httponly=True, samesite="strict", path="/")
        return response
    page = {**HEADERS, "Content-Security-Policy": PAGE_POLICY}
    return site.refusal(request) or HTMLResponse(render(site), headers=page)


async def _icon(_request: Request) -> Response:
    """Browsers ask for one, whatever the page says."""
    return Response(status_code=204, headers=HEADERS)


async def _file(_site: Site, request: Request) -> Response:
    """A file of the page."""
    name = request.path_params["name"]
    if name not in FILES:
        return _plain("There is no such file.", 404)
    return FileResponse(HERE / name, headers=HEADERS)


async def _page(site: Site, request: Request) -> Response:
    """The page of an answer."""
    text = site.answers.pages.kept.get(request.path_params["key"])
    if text is None:
        return _plain("This answer is no longer kept; ask again.", 404)
    own = {**HEADERS, "Content-Security-Policy": "frame-ancestors 'self'"}
    return HTMLResponse(text, headers=own)


async def _machine(site: Site, request: Request) -> Response:
    """The file of a changed machine."""
    text = site.files.made.get(request.path_params["name"])
    return _plain(text or "There is no such file.", 200 if text else 404)


async def _drop(site: Site, request: Request) -> Response:
    """Take a file that was dropped."""
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > MOST_BYTES:
            break
    try:
        kind, name = site.files.add(request.query_params.get("name", ""), bytes(content))
    except PerfModelError as fault:
        return _plain(str(fault), 400)
    return JSONResponse({"kind": kind, "name": name}, headers=HEADERS)


async def _stream(site: Site, request: Request) -> Response:
    """Answer a state."""
    return StreamingResponse(
        iter_events(site, dict(request.query_params)),
        media_type="text/event-stream",
        headers=HEADERS,
    )


async def _guarded(site: Site, handle: Handler, request: Request) -> Response:
    """What *handle* answers to the holder of the cookie."""
    return site.refusal(request) or await handle(site, request)


def build_app(site: Site) -> Starlette:
    """The application of *site*; everything but the way in is for the holder of the cookie."""
    guarded = {"/files/{name}": _file, "/pages/{key}": _page, "/machines/{name}": _machine,
               "/stream": _stream}  # fmt: skip
    return Starlette(
        routes=[
            Route("/", partial(_home, site)),
            Route("/favicon.ico", _icon),
            Route("/drop", partial(_guarded, site, _drop), methods=["POST"]),
            *(Route(path, partial(_guarded, site, one)) for path, one in guarded.items()),
        ]
    )


async def iter_events(site: Site, state: dict[str, str]) -> AsyncIterator[str]:
    """What becomes of a question, as server-sent events; the last one is an end or a fault."""
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    gone = threading.Event()

    def tell(kind: str, content: Any) -> None:
        loop.call_soon_threadsafe(told.put_nowait, (kind, content))

    site.worker.submit(site.answers.answer, state, tell, gone)
    try:
        while True:
            kind, content = await told.get()
            yield f"event: {kind}\ndata: {json.dumps(content)}\n\n"
            if kind in ("end", "fault"):
                return
    finally:
        # The browser has left, or has asked something else.
        gone.set()


def render(site: Site) -> str:
    """The page; its settings come with the first answer."""
    return load_template(HERE).render(
        offered={kind: site.files.offered(kind) for kind in LOAD},
        stacks=api.list_stacks(),
        start=urlencode(site.start),
        scales=SCALES,
        folder=site.files.start,
        version=perfmodel.__version__,
    )


def build_site(
    *,
    workloads: Sequence[str],
    topologies: Sequence[str],
    port: int,
    scratch: Path,
    opened: str | None = None,
) -> Site:
    """A site with the catalogs and the files that the user names, which must be readable."""
    files = Files(Path.cwd(), scratch)
    for kind, named in (("workload", workloads), ("topology", topologies)):
        for one in named:
            files.name(kind, one)
    start = {"workload": "gpt2_124m", "topology": "dgx_h100"} if opened is None else {}
    start |= {kind: name for name, kind in reversed(files.kinds.items())}
    return Site(files, port, {**start, **(files.reopen(opened) if opened else {})})


def serve(*, port: int, opens_browser: bool, **named: Any) -> None:
    """Answer until Ctrl-C."""
    keep_memory()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening,
        tempfile.TemporaryDirectory(prefix="perfmodel_ui_") as folder,
    ):
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((LOOPBACK, port))
        own_port = listening.getsockname()[1]
        site = build_site(port=own_port, scratch=Path(folder), **named)
        print(f"perfmodel is at {site.address}\nCtrl-C ends it.", flush=True)
        if opens_browser:
            # Everybody on the machine can read command lines, and only the user this file.
            enter = Path(folder) / "enter.html"
            enter.write_text(ENTER.format(site.address), "utf-8")
            webbrowser.open(enter.as_uri())
        config = uvicorn.Config(build_app(site), log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])
