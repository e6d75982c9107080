"""/docs in a real browser: every route is listed, and one is tried."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.browsing import browsing
from support.serving import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def page(tiny_server: Server) -> Iterator["Page"]:
    with browsing() as browser:
        page = browser.new_page()
        page.set_default_timeout(30_000)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        page.on(
            "request",
            lambda sent: problems.append(sent.url) if not sent.url.startswith(tiny_server.url) else None,
        )
        page.goto(f"{tiny_server.url}/docs")
        yield page
        assert not problems


def test_every_route_is_shown_with_its_fields(tiny_server: Server, page: "Page") -> None:
    document = tiny_server.get("/openapi.json").json()
    operations = [f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item]
    page.wait_for_selector(".operation")
    shown = page.eval_on_selector_all(
        ".operation > summary",
        "all => all.map(one => `${one.children[0].textContent} ${one.children[1].textContent}`)",
    )
    assert sorted(shown) == sorted(operations)
    page.evaluate("for (const one of document.querySelectorAll('.operation')) one.open = true")
    page.wait_for_function(
        "[...document.querySelectorAll('.operation')].every(one => one.querySelector('.try'))"
    )
    fields = page.eval_on_selector_all("#embeddings td:first-child", "all => all.map(one => one.textContent)")
    assert "input *" in fields and "pooling" in fields
    page.fill("#filter", "truncate embeddings")
    assert page.locator(".operation:visible").count() == 1
    page.fill("#filter", "")


def test_route_can_be_tried(page: "Page") -> None:
    page.evaluate("document.getElementById('embeddings').open = true")
    form = page.locator("#embeddings .try")
    assert json.loads(form.locator("textarea").input_value()) == {"input": "The sea is"}
    form.locator("textarea").fill('{"input": "a", "dimensions": 3}')
    form.locator("button.main").click()
    form.locator(".note", has_text="200 OK").wait_for()
    answer = json.loads(form.locator("pre").text_content() or "")
    assert len(answer["data"][0]["embedding"]) == 3
    assert '"dimensions": 3' in (page.locator("#embeddings details.model pre").text_content() or "")
