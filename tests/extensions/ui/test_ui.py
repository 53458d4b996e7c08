"""`perfmodel ui`: who may ask, what is answered, and the page in a real browser."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
import time
import urllib.parse
from contextlib import closing, contextmanager

import pytest

from perfmodel import api
from perfmodel.base.errors import InputError

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
from perfmodel.extensions.ui.answering import Answers  # noqa: E402  after the skip
from perfmodel.extensions.ui.files import MOST_BYTES, Files  # noqa: E402
from perfmodel.extensions.ui.knobs import FIRST, list_knobs, read_state  # noqa: E402
from perfmodel.extensions.ui.server import PAGE_POLICY, build_app, build_site, render  # noqa: E402
from perfmodel.prediction.layouts.candidates import searched_fields  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SMALL = {"topology": "dgx_a100", "workload": "transformer_small", "batch": "256"}


@contextmanager
def served(folder, opened=None):
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    found = build_site(workloads=(), topologies=(), port=port, scratch=folder, opened=opened)
    server = uvicorn.Server(uvicorn.Config(build_app(found), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield found
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with served(tmp_path_factory.mktemp("scratch")) as found:
        yield found


@pytest.fixture(scope="module")
def answers(site):
    """All that is said of a small model, by kind; the last one of each strip and picture."""
    return ask_all(site, **SMALL, price="2", tokens="1B")


def ask(site, path, *, cookie=None, host=None, body=None, **headers):
    cookies = {"Cookie": f"{site.cookie}={cookie}"} if cookie != "" else {}
    if cookie is None:
        cookies = {"Cookie": f"{site.cookie}={site.token}"}
    every = {"Host": host or site.hosts[0], "Connection": "close", **cookies, **headers}
    with closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=120)) as connection:
        connection.request("GET" if body is None else "POST", path, body=body, headers=every)
        with connection.getresponse() as response:
            return response.status, dict(response.getheaders()), response.read().decode()


def stream(site, **state):
    _, _, text = ask(site, f"/stream?{urllib.parse.urlencode(state)}")
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    return [
        (kind.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for kind, data in blocks
    ]


def ask_all(site, **state):
    said = {"kinds": []}
    for kind, content in stream(site, **state):
        said["kinds"].append(kind)
        said.setdefault(kind, {}).update(content)
        said.setdefault("parts", {}).update(content.get("parts", {}))
    return said


def files_in(folder):
    (folder / "scratch").mkdir()
    return Files(folder, folder / "scratch")


def test_the_token_of_the_address_becomes_a_cookie_and_leaves_the_address(site):
    status, headers, text = ask(site, f"/?token={site.token}", cookie="")
    assert (status, "url=/" in text, site.token in text) == (200, True, False)
    assert f"{site.cookie}={site.token}" in headers["set-cookie"]
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]
    status, headers, text = ask(site, "/")
    assert (status, headers["content-security-policy"]) == (200, PAGE_POLICY)
    assert "dgx_h100" in text


def test_two_pages_on_one_machine_have_cookies_of_their_own(site, tmp_path):
    other = build_site(workloads=(), topologies=(), port=site.port + 1, scratch=tmp_path)
    assert other.cookie != site.cookie


@pytest.mark.parametrize(
    "path", ["/", "/files/ui.js", "/pages/0", "/machines/a.yaml", "/stream?topology=dgx_a100"]
)
def test_nobody_else_is_answered(site, path):
    assert ask(site, path, cookie="")[0] == 403
    assert ask(site, path, cookie="wrong")[0] == 403
    # A name that somebody points at this machine (DNS rebinding), and a page of somebody else.
    assert ask(site, path, host=f"evil.example:{site.port}")[0] == 421
    assert ask(site, path, Origin="http://evil.example")[0] == 403
    assert ask(site, "/?token=wrong", cookie="")[0] == 403


def test_another_page_cannot_drop_a_file(site):
    assert ask(site, "/drop?name=a.yaml", body=b"x", Origin="http://evil.example")[0] == 403
    assert ask(site, "/drop?name=a.yaml", body=b"x", cookie="")[0] == 403


def test_a_point_comes_first_then_the_answer_then_what_is_near(site, answers):
    kinds = [kind for kind in dict.fromkeys(answers["kinds"]) if kind != "phase"]
    assert kinds == ["knobs", "point", "answer", "near", "end"]
    # Curves of the setting before are gone with the first number.
    assert answers["point"]["parts"]["#hosts"] == answers["point"]["parts"]["#batch"] == ""
    assert "whole run" in answers["parts"]["#facts"]
    assert "90 % interval" in answers["parts"]["#facts"]
    assert "--tokens 1000000000 --price 2" in answers["point"]["copy"]["command"]
    status, headers, page = ask(site, f"/pages/{answers['answer']['page']}")
    assert (status, headers["content-security-policy"]) == (200, "frame-ancestors 'self'")
    assert "Where the time goes" in page


def test_the_answer_is_that_of_predict(answers):
    alone = api.predict(
        api.Scenario("dgx_a100", workload="transformer_small", overrides=("batch=256",))
    )
    text = f"{alone.iteration_ns / 1e6:.4g} ms"
    assert text in answers["parts"]["#headline"]


def test_every_change_next_to_an_answer_is_an_answer_of_predict(site, answers):
    links = {
        one.near.label: one
        for one in site.answers.tried["transformer_small"].values()
        if one.near.group in ("hosts", "batch", "settings")
    }
    assert len(links) >= 8
    for part in ("compute", "memory", "nvlink"):
        assert f"{part}=1.1" in answers["parts"]["#next"]
    # A faster part is a machine file, and `predict` with that file says the same.
    state = {"topology": "dgx_a100", "workload": "transformer_small", "batch": "256"}
    for changes in ({"nvlink": "1.1"}, {"compute": "1.1"}, {"memory": "1.1"}, {"hosts": "2"}):
        asked = read_state({**state, **changes}, site.files)
        found = site.answers.figures.kept[asked.scenario]
        assert found.time_ns == api.predict(asked.scenario).iteration_ns, changes


def test_a_faster_part_makes_nothing_slower_and_its_file_can_be_kept(site):
    said = ask_all(site, **SMALL, compute="1.1")
    assert "dgx_a100_compute_1.1.yaml" in said["parts"]["#facts"]
    assert str(site.files.scratch) not in json.dumps(said)
    status, _, text = ask(site, "/machines/dgx_a100_compute_1.1.yaml")
    assert (status, "device: a100_sxm_80gb_compute_1.1.yaml" in text) == (200, True)
    [faster, usual] = site.answers.history[:2]
    assert faster.figures.time_ns < usual.figures.time_ns
    assert faster.near.label.startswith("compute open to 1.1")


def test_open_settings_show_what_was_chosen(answers):
    now = answers["point"]["now"]
    assert now["parallel.tp"].isdecimal()
    assert now["batch"] == "256"
    assert now["stack"] in api.list_stacks()


def test_the_knobs_are_the_layout_table_and_the_schema():
    keys = [one.key for one in list_knobs("transformer")]
    assert keys[: len(FIRST)] == list(FIRST)
    assert set(searched_fields().values()) < set(keys)
    by_key = {one.key: one for one in list_knobs("transformer")}
    assert by_key["parallel.sharding"].choices == ("none", "zero1", "zero2", "zero3", "hsdp")
    assert by_key["parallel.expert_overlap"].choices == ("true", "false")
    assert "nvfp4" in by_key["training.compute"].choices
    assert by_key["parallel.tp"].is_number
    assert "sharding.min_width" in {one.key for one in list_knobs("dlrm")}


def test_a_price_costs_no_new_prediction(site, answers):
    before = dict(site.answers.figures.kept)
    said = ask_all(site, **SMALL, price="4")
    assert list(site.answers.figures.kept) == list(before) or len(before) == len(
        site.answers.figures.kept
    )
    assert "--price 4" in said["point"]["copy"]["command"]


def test_one_setting_is_compared_with_another(site, answers):
    said = ask_all(site, **{**SMALL, "batch": "512"}, against=urllib.parse.urlencode(sorted(
        {**SMALL, "price": "2", "tokens": "1B"}.items())))  # fmt: skip
    assert "times as" in said["parts"]["#headline"]
    assert "batch 256 to 512" in said["parts"]["#history"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload": "/etc/passwd"}, "neither in the catalog nor a file below"),
        ({"workload": "../../etc/passwd"}, "neither in the catalog nor a file below"),
        ({"topology": "/etc/passwd"}, "neither in the catalog nor a file below"),
        ({"stack": "../x"}, "stack: must be one that the page offers"),
        ({"hosts": "0"}, "hosts must be 1 to"),
        ({"hosts": "many"}, "must be numbers"),
        ({"parallel.tp": "3"}, "tp=3"),
        ({"parallel.sharding": "zero9"}, "parallel.sharding: must be one that the page offers"),
        ({"tables": "/etc/passwd"}, "transformer_small has no such setting"),
        ({"nvlink": "1000"}, "must be 0.01 to 100 times as fast"),
        ({"topology": "l4_pcie", "nvlink": "2"}, "l4_pcie has no NVLink to change"),
    ],
)
def test_what_cannot_be_answered_says_why(site, changes, words):
    kinds = dict(stream(site, **{**SMALL, **changes}))
    assert words in kinds["fault"]["words"]
    assert "end" not in kinds


def test_files_of_the_user_are_chosen_first(tmp_path):
    own = {"topologies": (str(tmp_path / "m.yaml"),), "workloads": (str(tmp_path / "w.yaml"),)}
    (tmp_path / "m.yaml").write_text(api.init("topology"))
    (tmp_path / "w.yaml").write_text(api.init("workload"))
    site = build_site(**own, port=1, scratch=tmp_path)
    assert site.start == {
        "topology": str(tmp_path / "m.yaml"),
        "workload": str(tmp_path / "w.yaml"),
    }
    for (file,) in own.values():
        assert f"<option>{file}</option>" in render(site)


def test_files_below_the_start_folder_are_read_and_no_others(tmp_path):
    files = files_in(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "w.yaml").write_text(api.init("workload"))
    assert files.find("workload", "mine/w.yaml").endswith("mine/w.yaml")
    (tmp_path / "mine" / "out.yaml").symlink_to("/etc/passwd")
    for name in ("mine/out.yaml", "../w.yaml", "/etc/passwd", ""):
        with pytest.raises(InputError, match="Drop the file on the page"):
            files.find("workload", name)


def test_a_dropped_file_is_a_model_or_a_machine_of_bounded_size(site, tmp_path):
    files = files_in(tmp_path)
    assert files.add("w.yaml", api.init("workload").encode()) == ("workload", "w.yaml")
    assert files.add("../../m.yaml", api.init("topology").encode()) == ("topology", "m.yaml")
    other = api.init("workload").replace("batch:", "batch: 64 #")
    kind, name = files.add("w.yaml", other.encode())
    assert (kind, name.endswith("_w.yaml")) == ("workload", True)
    with pytest.raises(InputError, match=r"hello\.txt"):
        files.add("hello.txt", b"hello")
    with pytest.raises(InputError, match="must be at most 4 MiB"):
        files.add("big.yaml", bytes(MOST_BYTES + 1))
    assert ask(site, "/drop?name=big.yaml", body=bytes(MOST_BYTES + 1))[0] == 400
    status, _, text = ask(site, "/drop?name=w.yaml", body=api.init("workload").encode())
    assert (status, json.loads(text)) == (200, {"kind": "workload", "name": "w.yaml"})


def test_a_saved_page_reopens_its_question_with_own_files_elsewhere(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here = files_in(tmp_path / "here")
    here.add("w.yaml", api.init("workload").encode())
    state = {"workload": "w.yaml", "topology": "dgx_a100", "batch": "<8>"}
    saved = tmp_path / "saved.html"
    saved.write_text(here.save("<html>\n<head>\n<title>x</title></head></html>", state))
    site = build_site(
        workloads=(), topologies=(), port=1, scratch=tmp_path / "there", opened=str(saved)
    )
    assert site.start == state
    assert api.load_workload(site.files.find("workload", "w.yaml")).batch
    assert site.files.reopen("http://127.0.0.1:5/#hosts=2&workload=gpt2_xl") == {
        "hosts": "2", "workload": "gpt2_xl"
    }  # fmt: skip
    (tmp_path / "other.html").write_text("<html></html>")
    with pytest.raises(InputError, match="is no page that `perfmodel ui` saved"):
        site.files.reopen(str(tmp_path / "other.html"))


def test_an_answer_nobody_waits_for_is_given_up_in_the_middle(tmp_path):
    gone, told = threading.Event(), []

    def tell(kind, content):
        told.append(kind)
        if "point" in told and content.get("words") == "replaying samples":
            gone.set()

    Answers(files_in(tmp_path)).answer(SMALL, tell, gone)
    assert gone.is_set()
    assert "answer" not in told


def test_every_preset_is_in_the_catalogs(site):
    import re

    page = render(site)
    models = set(re.findall(r'data-workload="([^"]+)"', page))
    machines = set(re.findall(r'data-topology="([^"]+)"', page))
    assert models <= {one.name for one in api.list_workloads()}
    assert machines <= set(api.list_topologies())
    assert min(len(models), len(machines)) > 3


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as play:
        launched = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
class TestInABrowser:
    """Ten tasks, as a user does them."""

    @pytest.fixture
    def page(self, browser, site):
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        page, faults = context.new_page(), []
        page.on("pageerror", lambda fault: faults.append(str(fault)))
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.goto(site.address)
        page.wait_for_url("**/#*")
        self.open(page, site, SMALL)
        yield page
        context.close()
        refused = [one for one in faults if "400 (Bad Request)" in one]
        assert faults == (refused if hasattr(page, "refused") else [])

    def open(self, page, site, state):
        page.goto(f"http://127.0.0.1:{site.port}/#{urllib.parse.urlencode(state)}")
        self.shows(page, "#facts", "90 % interval")

    def shows(self, page, place, words):
        page.locator(place).filter(has_text=words).wait_for(timeout=120_000)

    def ends(self, page, kind="end"):
        page.wait_for_selector(f"body[data-state={kind}]", timeout=240_000)

    def test_change_undo_and_history(self, page):
        page.fill("[name=batch]", "512")
        page.wait_for_url("**batch=512**")
        self.shows(page, "#history", "batch 256 to 512")
        page.select_option("[name='parallel.sharding']", "zero1")
        self.shows(page, "#history", "sharding open to zero1")
        assert "parallel.sharding=zero1" in page.url
        page.click("#undo")
        self.shows(page, "#history", "sharding zero1 to open")
        assert page.input_value("[name='parallel.sharding']") == ""
        assert page.input_value("[name=batch]") == "512"

    def test_compare(self, page):
        page.click("#pin")
        page.fill("[name=batch]", "1024")
        self.shows(page, ".versus", "times as")

    def test_share_by_address_with_a_second_browser_and_reload(self, page, site, browser):
        page.fill("[name='parallel.tp']", "2")
        self.shows(page, "#history", "tp open to 2")
        page.click("[data-copy=address]")
        copied = page.evaluate("() => navigator.clipboard.readText()")
        assert copied == page.url
        assert site.token not in copied
        page.reload()
        self.shows(page, "#facts", "90 % interval")
        assert page.input_value("[name='parallel.tp']") == "2"
        other = browser.new_context().new_page()
        other.goto(copied)
        assert "Open the address" in other.inner_text("body")
        other.goto(site.address)
        other.wait_for_url("**/#*")
        other.goto(copied)
        self.shows(other, "#facts", "90 % interval")
        assert other.input_value("[name='parallel.tp']") == "2"
        other.context.close()

    def test_the_way_in_from_a_file_that_only_the_user_can_read(self, browser, site, tmp_path):
        from perfmodel.extensions.ui.server import ENTER

        (tmp_path / "enter.html").write_text(ENTER.format(site.address))
        page = browser.new_context().new_page()
        page.goto((tmp_path / "enter.html").as_uri())
        page.wait_for_selector("#knobs")
        assert site.token not in page.url
        page.reload()
        page.wait_for_selector("#knobs")
        page.context.close()

    def test_an_own_file(self, page, tmp_path):
        (tmp_path / "my_model.yaml").write_text(api.init("workload"))
        page.click("#own summary")
        page.set_input_files("#file", str(tmp_path / "my_model.yaml"))
        self.shows(page, "#history", "my_model.yaml on dgx_a100")
        (tmp_path / "bad.txt").write_text("hello")
        page.set_input_files("#file", str(tmp_path / "bad.txt"))
        page.wait_for_selector("body[data-state=fault]")
        assert "bad.txt" in page.inner_text("#refusal")
        # The browser itself notes that the file was refused.
        page.refused = True

    def test_an_impossible_setting_greys_what_is_below_and_says_why(self, page):
        self.ends(page)
        page.fill("[name='parallel.tp']", "7")
        page.wait_for_selector("body[data-state=fault]")
        assert "tp=7" in page.inner_text("#refusal")
        page.wait_for_timeout(300)
        grey = page.locator(".old").evaluate("(one) => getComputedStyle(one).opacity")
        assert float(grey) < 0.5
        page.click("#undo")
        self.shows(page, "#facts", "90 % interval")
        assert page.inner_text("#refusal") == ""

    def test_phone_and_dark(self, page):
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        page.click("#theme")
        chosen = page.evaluate("() => document.documentElement.dataset.theme")
        assert chosen in ("dark", "light")
        report = page.frame_locator("iframe")
        assert report.locator("html").get_attribute("data-theme") == chosen

    def test_by_keyboard_only(self, page):
        self.ends(page)
        page.focus("[name=hosts]")
        page.keyboard.type("2")
        self.shows(page, "#history", "hosts open to 2")
        self.ends(page)
        page.locator("#hosts a").first.focus()
        page.keyboard.press("Enter")
        self.shows(page, "#history", "hosts 2 to 1")

    def test_two_clicks_save_and_reopen(self, page, tmp_path):
        page.click("text=DLRM-DCNv2")
        self.shows(page, "#history", "dlrm_dcnv2 on dgx_a100")
        page.click("text='8 H100'")
        self.shows(page, "#history", "topology dgx_a100 to dgx_h100")
        page.wait_for_selector("body[data-state=answer], body[data-state=near]", timeout=240_000)
        with page.expect_download() as waiting:
            page.click("#save")
        waiting.value.save_as(tmp_path / "saved.html")
        (tmp_path / "scratch").mkdir()
        with served(tmp_path / "scratch", opened=str(tmp_path / "saved.html")) as again:
            assert again.start["workload"] == "dlrm_dcnv2"
            assert again.start["topology"] == "dgx_h100"
