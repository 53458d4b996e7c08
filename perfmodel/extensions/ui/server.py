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
import threading
import webbrowser
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from perfmodel import api
from perfmodel.base.errors import PerfModelError
from perfmodel.execution.executor import keep_memory
from perfmodel.extensions.ui.answering import Answers, read_knobs
from perfmodel.reports.html import load_template

HERE = Path(__file__).parent
COOKIE = "perfmodel_ui"
LOOPBACK = "127.0.0.1"
FILES = {"ui.js": "text/javascript", "ui.css": "text/css"}
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


@dataclass(slots=True)
class Site:
    """What the page offers and first shows, its secret, and the one thread that answers."""

    topologies: tuple[str, ...]
    workloads: tuple[str, ...]
    port: int
    chosen: tuple[str, str] = ("dgx_h100", "gpt2_124m")
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    answers: Answers = field(default_factory=Answers)
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    @property
    def hosts(self) -> tuple[str, ...]:
        """How a request may name this server."""
        return tuple(f"{name}:{self.port}" for name in (LOOPBACK, "localhost"))

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
        cookie = request.cookies.get(COOKIE, "")
        if not hmac.compare_digest(cookie.encode(), self.token.encode()):
            return _plain("Open the address that `perfmodel ui` printed.", 403)
        return None


def _plain(words: str, status: int) -> Response:
    return PlainTextResponse(words, status, headers=HEADERS)


def build_app(site: Site) -> Starlette:
    """The application of *site*."""

    async def home(request: Request) -> Response:
        token = request.query_params.get("token")
        is_own = request.headers.get("host") in site.hosts
        if (
            token is not None
            and is_own
            and hmac.compare_digest(token.encode(), site.token.encode())
        ):
            # The secret leaves the address, so that it is in no history and no referrer.
            response = RedirectResponse("/", 303, headers=HEADERS)
            response.set_cookie(COOKIE, site.token, httponly=True, samesite="strict", path="/")
            return response
        return site.refusal(request) or HTMLResponse(
            render(site), headers={**HEADERS, "Content-Security-Policy": PAGE_POLICY}
        )

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        refused = site.refusal(request)
        if refused is not None or name not in FILES:
            return refused or _plain("There is no such file.", 404)
        return Response((HERE / name).read_text("utf-8"), media_type=FILES[name], headers=HEADERS)

    async def page(request: Request) -> Response:
        text = site.answers.pages.kept.get(request.path_params["key"])
        refused = site.refusal(request)
        if refused is not None or text is None:
            return refused or _plain("This answer is no longer kept; ask again.", 404)
        own = {**HEADERS, "Content-Security-Policy": "frame-ancestors 'self'"}
        return HTMLResponse(text, headers=own)

    async def stream(request: Request) -> Response:
        return site.refusal(request) or StreamingResponse(
            iter_events(site, dict(request.query_params)),
            media_type="text/event-stream",
            headers=HEADERS,
        )

    return Starlette(
        routes=[
            Route("/", home),
            Route("/files/{name}", file),
            Route("/pages/{key}", page),
            Route("/stream", stream),
        ]
    )


async def iter_events(site: Site, knobs: dict[str, str]) -> AsyncIterator[str]:
    """What becomes of a question, as server-sent events; the last one is an answer or a fault."""
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    gone = threading.Event()

    def tell(kind: str, content: Any) -> None:
        loop.call_soon_threadsafe(told.put_nowait, (kind, content))

    def work() -> None:
        try:
            asked = read_knobs(knobs, topologies=site.topologies, workloads=site.workloads)
        except PerfModelError as fault:
            tell("fault", {"words": str(fault)})
        else:
            site.answers.answer(asked, tell, gone)

    site.worker.submit(work)
    try:
        while True:
            kind, content = await told.get()
            yield f"event: {kind}\ndata: {json.dumps(content)}\n\n"
            if kind in ("answer", "fault"):
                return
    finally:
        # The browser has left, or has asked something else.
        gone.set()


def render(site: Site) -> str:
    """The page with its knobs."""
    return load_template(HERE).render(
        topologies=site.topologies,
        workloads=site.workloads,
        stacks=api.list_stacks(),
        chosen=site.chosen,
    )


def build_site(*, workloads: Sequence[str], topologies: Sequence[str], port: int) -> Site:
    """A site with the catalogs and the files that the user names, which must be readable."""
    for one in workloads:
        api.load_workload(one)
    for one in topologies:
        api.load_topology(one)
    names = tuple(title.name for title in api.list_workloads())
    site = Site((*topologies, *api.list_topologies()), (*workloads, *names), port)
    machine, model = site.chosen
    site.chosen = next(iter(topologies), machine), next(iter(workloads), model)
    return site


def serve(
    *, workloads: Sequence[str], topologies: Sequence[str], port: int, opens_browser: bool
) -> None:
    """Answer until Ctrl-C."""
    keep_memory()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((LOOPBACK, port))
        site = build_site(
            workloads=workloads, topologies=topologies, port=listening.getsockname()[1]
        )
        print(f"perfmodel is at {site.address}\nCtrl-C ends it.", flush=True)
        if opens_browser:
            webbrowser.open(site.address)
        config = uvicorn.Config(build_app(site), log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])
