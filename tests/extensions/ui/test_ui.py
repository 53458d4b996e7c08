"""`perfmodel ui`: who may ask, what is answered, and the page in a real browser."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
import time
import urllib.parse
from contextlib import closing

import pytest

from perfmodel import api
from perfmodel.base.errors import InputError

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
from perfmodel.extensions.ui.answering import Answers, read_knobs  # noqa: E402  after the skip
from perfmodel.extensions.ui.server import COOKIE, build_app, build_site, render  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SMALL = {"topology": "dgx_a100", "workload": "gpt2_124m"}


@pytest.fixture(scope="module")
def site():
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    found = build_site(workloads=(), topologies=(), port=listening.getsockname()[1])
    server = uvicorn.Server(uvicorn.Config(build_app(found), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield found
    server.should_exit = True
    thread.join()
    listening.close()


def ask(site, path, *, cookie=None, host=None, **headers):
    cookies = {"Cookie": f"{COOKIE}={cookie}"} if cookie != "" else {}
    if cookie is None:
        cookies = {"Cookie": f"{COOKIE}={site.token}"}
    every = {"Host": host or site.hosts[0], "Connection": "close", **cookies, **headers}
    with closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)) as connection:
        connection.request("GET", path, headers=every)
        with connection.getresponse() as response:
            return response.status, dict(response.getheaders()), response.read().decode()


def stream(site, **knobs):
    _, _, text = ask(site, f"/stream?{urllib.parse.urlencode(knobs)}")
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    return [
        (kind.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for kind, data in blocks
    ]


def test_the_token_of_the_address_becomes_a_cookie(site):
    status, headers, _ = ask(site, f"/?token={site.token}", cookie="")
    assert (status, headers["location"]) == (303, "/")
    assert f"{COOKIE}={site.token}" in headers["set-cookie"]
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]
    status, headers, text = ask(site, "/")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "dgx_h100" in text


@pytest.mark.parametrize("path", ["/", "/files/ui.js", "/pages/0", "/stream?topology=dgx_a100"])
def test_nobody_else_is_answered(site, path):
    assert ask(site, path, cookie="")[0] == 403
    assert ask(site, path, cookie="wrong")[0] == 403
    # A name that somebody points at this machine (DNS rebinding), and a page of somebody else.
    assert ask(site, path, host=f"evil.example:{site.port}")[0] == 421
    assert ask(site, path, Origin="http://evil.example")[0] == 403
    assert ask(site, "/?token=wrong", cookie="")[0] == 403


def test_a_point_comes_before_the_whole_answer_and_a_page_shows_it(site):
    events = stream(site, **SMALL, price="2", tokens="1B")
    kinds = [kind for kind, _ in events if kind != "phase"]
    assert kinds == ["point", "answer"]
    said = dict(events)
    assert said["point"]["time_ns"] == said["answer"]["time_ns"]
    assert "--tokens 1000000000 --price 2" in said["answer"]["command"]
    assert any("whole run" in fact for fact in said["answer"]["facts"])
    # The interval comes with the whole answer only.
    assert len(said["answer"]["facts"]) == len(said["point"]["facts"]) + 1
    status, headers, page = ask(site, f"/pages/{said['answer']['page']}")
    assert (status, headers["content-security-policy"]) == (200, "frame-ancestors 'self'")
    assert "Where the time goes" in page


def test_the_command_and_the_answer_are_those_of_predict(site):
    said = dict(stream(site, **SMALL, batch="96", hosts="1"))["answer"]
    assert "--set batch=96" in said["command"]
    alone = api.predict(api.Scenario(**SMALL, overrides=("batch=96",)))
    assert said["time_ns"] == alone.iteration_ns


def test_a_batch_that_changes_no_replayed_job_is_extrapolated_from_the_same_replays(site):
    knobs = {"topology": "dgx_a100", "workload": "transformer_small", "tp": "1", "pp": "1"}
    site.answers.loops.kept.clear()
    for batch in ("128", "256"):
        said = dict(stream(site, **knobs, micro_batch="1", batch=batch))["answer"]
        overrides = ("parallel.tp=1", "parallel.pp=1", "parallel.micro_batch=1", f"batch={batch}")
        scenario = api.Scenario("dgx_a100", workload="transformer_small", overrides=overrides)
        assert said["time_ns"] == api.predict(scenario).iteration_ns
    assert len(site.answers.loops.kept) == 1


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        ({**SMALL, "workload": "/etc/passwd"}, "workload: must be one that the page offers"),
        ({**SMALL, "stack": "../x"}, "stack: must be one that the page offers"),
        ({**SMALL, "hosts": "0"}, "hosts must be 1 to"),
        ({**SMALL, "hosts": "many"}, "must be numbers"),
        ({**SMALL, "tp": "3"}, "gpt2_124m"),
    ],
)
def test_what_cannot_be_answered_says_why(site, knobs, word):
    [(kind, said)] = [one for one in stream(site, **knobs) if one[0] != "phase"]
    assert kind == "fault"
    assert word in said["words"]


def test_files_of_the_user_are_chosen_first(tmp_path):
    own = {"topologies": (str(tmp_path / "m.yaml"),), "workloads": (str(tmp_path / "w.yaml"),)}
    (tmp_path / "m.yaml").write_text(api.init("topology"))
    (tmp_path / "w.yaml").write_text(api.init("workload"))
    page = render(build_site(**own, port=1))
    for (file,) in own.values():
        assert f"<option selected>{file}</option>" in page
    assert page.count("<option selected>") == 4


def test_only_what_is_offered_is_read():
    with pytest.raises(InputError, match="topology"):
        read_knobs({"topology": "my.yaml"}, topologies=("dgx_a100",), workloads=())
    offered = {"topologies": ("dgx_a100",), "workloads": ("gpt2_124m",)}
    with pytest.raises(InputError, match="stack: must be one that the page offers, got 'mine'"):
        read_knobs({**SMALL, "stack": "mine"}, **offered)
    assert read_knobs({**SMALL, "stack": "torchtitan"}, **offered).scenario.stack == "torchtitan"


def test_an_answer_nobody_waits_for_is_given_up_in_the_middle():
    asked = read_knobs(SMALL, topologies=("dgx_a100",), workloads=("gpt2_124m",))
    gone, told = threading.Event(), []

    def tell(kind, content):
        told.append(kind)
        if "point" in told and content.get("words") == "replaying samples":
            gone.set()

    Answers().answer(asked, tell, gone)
    assert gone.is_set()
    assert "answer" not in told


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
def test_the_page_works_in_a_browser(site):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        page, faults = context.new_page(), []
        page.on("pageerror", lambda fault: faults.append(str(fault)))
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.goto(site.address)
        assert site.token not in page.url

        def settled(pane="a", state="answer"):
            page.wait_for_selector(f"#{pane}[data-state={state}]", timeout=120_000)
            return page.inner_text(f"#{pane} .answer")

        def shows(place, words):
            page.locator(place).filter(has_text=words).wait_for(timeout=120_000)

        settled()
        page.select_option("#a [name=workload]", "transformer_small")
        knobs = {"batch": "32", "hosts": "2", "tp": "2", "micro_batch": "1", "price": "3",
                 "tokens": "1B", "pp": "1"}  # fmt: skip
        for name, value in knobs.items():
            page.fill(f"#a [name={name}]", value)
        page.select_option("#a [name=topology]", "dgx_a100")
        page.select_option("#a [name=sharding]", "zero1")
        # Answers to earlier knobs may come first; only the last one knows of a whole run.
        shows("#a .facts", "whole run")
        assert "per iteration" in settled()
        report = page.frame_locator("#a iframe")
        assert "Where the time goes" in report.locator("body").inner_text()
        page.click("#compare")
        settled("b")
        assert page.inner_text("#versus") == "both take the same time"
        page.fill("#b [name=batch]", "64")
        shows("#versus", "times as fast in tokens/s")
        page.click("#a [data-copy=command]")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("perfmodel predict --topology dgx_a100")
        page.fill("#a [name=tp]", "7")
        settled(state="fault")
        page.click("#theme")
        chosen = page.evaluate("document.documentElement.dataset.theme")
        assert chosen in ("dark", "light")
        assert report.locator("html").get_attribute("data-theme") == chosen
        page.set_viewport_size({"width": 390, "height": 800})
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390
        browser.close()
    assert faults == []
