"""The files of the page as the server sends them, and what none of them may hold."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import ROOT, RunningServer
from tests.waiting import PATIENCE_S

FOLDER = ROOT / "service" / "api" / "page"
FILES = sorted(FOLDER.iterdir())
MODULES = [path for path in FILES if path.suffix == ".js"]


@pytest.mark.parametrize("name", ["", "page/main.js", "page/base.css", "page/icon.svg"])
def test_a_file_has_a_policy_and_is_asked_for_once(server: RunningServer, name: str) -> None:
    answer = server.client.get(f"/{name}")
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = server.client.get(f"/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = server.client.head(f"/{name}")
    assert (head.status_code, head.headers["etag"]) == (200, answer.headers["etag"])


@pytest.mark.parametrize("name", ["index", "../routes/page.py", "..%2froutes%2fpage.py", "%2e%2e/app.py", "main.js/"])
def test_no_other_file_is_sent(server: RunningServer, name: str) -> None:
    answer = httpx.get(f"{server.url}/page/{name}", follow_redirects=False, timeout=PATIENCE_S)
    assert answer.status_code in (307, 404)
    assert "import" not in answer.text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_sent_as_what_it_is(server: RunningServer, path: Path) -> None:
    answer = server.client.get(f"/page/{path.name}")
    assert answer.content == path.read_bytes()
    types = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(types[path.suffix])


def test_nothing_is_inline_and_nothing_from_elsewhere() -> None:
    text = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)
    for path in FILES:
        urls = re.findall(r"https?://[^\s\"'`)]+", path.read_text(encoding="utf-8"))
        assert set(urls) <= {"http://www.w3.org/2000/svg", *_SOURCES}, path.name


_SOURCES = {"https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_makes_no_markup_of_text_and_stays_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    made = re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|createContextual", text
    )
    assert made is None
    assert len(text.splitlines()) < 300
    assert max(map(len, text.splitlines())) <= 120
    assert text.startswith("// ")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_every_import_is_of_a_name_that_is_exported(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for names, module in re.findall(r"import \{([^}]*)\} from \"\./([\w-]+\.js)\"", text):
        exported = re.findall(
            r"^export (?:async )?(?:function\*?|const|class) (\w+)", (FOLDER / module).read_text(), re.M
        )
        assert {name.strip() for name in names.split(",")} <= set(exported), module
