"""The page with a thinking model: thoughts in the playground's answer, and the chunks of a request."""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.browsing import browsing
from support.serving import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

DRAW = """async () => {
  const { Columns } = await import("/inspector/thoughts.js");
  const box = document.body.appendChild(document.createElement("div")), columns = new Columns(box);
  const chunk = { number: 0, first: 0, is_committed: false, has_state: false };
  const drawn = () => ["speculated", "wrong"].map((kind) => box.querySelector(`.${kind}`)?.textContent ?? null);
  columns.show([{ ...chunk, thought: ["tails"], wrong: null }]);
  const guessed = drawn();
  columns.show([{ ...chunk, thought: ["heads"], wrong: ["tails"], is_committed: true }]);
  const verified = drawn();
  box.remove();
  return [guessed, verified];
}"""
pytestmark = pytest.mark.long
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


def test_chunks_have_their_words_states_and_thoughts(page: "Page", thinking_server: Server) -> None:
    rng = random.Random(3)
    prompt = " ".join(rng.choice(["heads", "tails", "the", "coin", "is", "flips"]) for _ in range(42))
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "seed": 1, "deterministic": True}
    answer = thinking_server.post("/v1/completions", body).json()
    page.reload()
    page.wait_for_selector("#link[data-state=open]")
    page.check("input[name=mode][value=raw]")
    for name, value in (("prompt", prompt), ("max-tokens", "6"), ("temperature", "0"), ("seed", "1")):
        page.fill(f"#{name}", value)
    page.click("#send")
    page.wait_for_selector(".request.ended")
    page.wait_for_function("() => !document.querySelector('.wrong')")
    read = """all => all.map((one) => ({
      words: one.querySelectorAll(".words .token").length,
      thought: one.querySelector(".z").textContent,
      hasState: !one.querySelector(".s").classList.contains("none"),
      makesState: one.classList.contains("thinks"),
    }))"""
    chunks = page.eval_on_selector_all(".chunk", read)
    usage, thoughts = answer["usage"], answer["holdfast"]["thoughts"]
    num_tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    assert [one["words"] for one in chunks] == [min(4, num_tokens - at) for at in range(0, num_tokens + 1, 4)]
    assert [one["thought"] for one in chunks[: len(thoughts)]] == [f"{one['text']}∎" for one in thoughts]
    assert [one["hasState"] for one in chunks[1:]] == [one["makesState"] for one in chunks[:-1]]
    assert any(one["hasState"] for one in chunks) and not all(one["hasState"] for one in chunks)


def test_speculated_thoughts_are_marked_and_wrong_ones_struck_out(page: "Page") -> None:
    assert page.evaluate(DRAW) == [["tails∎", None], [None, "tails∎"]]
