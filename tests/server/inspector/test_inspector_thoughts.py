"""The playground with a thinking model."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.browsing import browsing
from support.serving import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

PROMPT = "heads tails the coin is flips heads heads tails"


@pytest.fixture(scope="module")
def page(thinking_server: Server) -> "Iterator[Page]":
    with browsing() as browser:
        page = browser.new_page()
        page.goto(thinking_server.url)
        yield page


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_thoughts_are_shown_in_the_answer(page: "Page", thinking_server: Server, stream: bool) -> None:
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "seed": 1, "deterministic": True}
    answer = thinking_server.post("/v1/completions", body).json()
    thoughts = answer["holdfast"]["thoughts"]
    written = [one["text"] for one in thoughts if one["token_ids"]]
    assert written
    page.reload()
    page.wait_for_selector("#link[data-state=open]")
    page.check("input[name=mode][value=raw]")
    page.set_checked("#stream", stream)
    page.check("#deterministic")
    for name, value in (("prompt", PROMPT), ("max-tokens", "24"), ("temperature", "0"), ("seed", "1")):
        page.fill(f"#{name}", value)
    page.click("#send")
    page.wait_for_selector("#facts:visible")
    shown = page.locator("#answer .thought").all_text_contents()
    assert [one.strip() for one in shown] == [f"‹{text}›" for text in written]
    facts = page.locator("#facts dd").all_inner_texts()
    assert f"{len(written)}, {len(thoughts) - len(written)} trivial" in facts
    page.evaluate("() => document.querySelectorAll('.thought').forEach((one) => one.remove())")
    assert page.text_content("#answer") == answer["choices"][0]["text"]
