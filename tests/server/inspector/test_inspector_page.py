"""The inspector page in a real browser, on a server with injected faults: tokens, commits and
rollbacks are shown.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.recordings import recording_files
from support.browsing import browsing
from support.serving import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import ElementHandle, Page

SEED = "7"  # the completion has 24 tokens and rollbacks; with other seeds it may end early
TIMEOUT_MS = 60_000.0
# Some elements exist only for a moment, and polling could miss them on a busy machine. So the page
# records them.
RECORD_ALL = """
  window.seen = { cards: [], kinds: new Set() };
  new MutationObserver(() => {
    for (const one of document.querySelectorAll(".request"))
      if (!seen.cards.includes(one)) seen.cards.push(one);
    for (const one of document.querySelectorAll(".strip .token, .verdicts > span"))
      for (const kind of one.classList) seen.kinds.add(kind);
  }).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["class"] });
"""


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Server]:
    """Mode verify, so that there are candidates; a third of them are wrong.

    Steps are slow enough to be seen.
    """
    settings = {"wrong_candidates": 0.35, "slow": 0.02}
    arguments = ("--determinism", "verify", "--served-model-name", "tiny", "--max-num-seqs", "16")
    with serving(tiny_llama, *arguments, engine="faulty_engine.py", engine_settings=settings) as server:
        yield server


class Visit:
    """The inspector in a page, and its console errors."""

    def __init__(self, page: "Page", server: Server) -> None:
        self.page = page
        self.problems: list[str] = []
        self.requested: list[str] = []
        self._listeners: dict[Any, Any] = {
            "pageerror": lambda error: self.problems.append(str(error)),
            "console": lambda said: self.problems.append(said.text) if said.type == "error" else None,
            "request": lambda request: self.requested.append(request.url),
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)
        page.goto(server.url)
        page.wait_for_selector("#link[data-state=open]")
        page.wait_for_selector("#fingerprint:not(:empty)")

    def end(self) -> None:
        """Leave the page as it was before the visit."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self.page.goto("about:blank")

    def ask(self, prompt: str = "the quick brown fox", **fields: str) -> None:
        self.page.fill("#prompt", prompt)
        for name, value in {"seed": SEED, **fields}.items():
            self.page.fill(f"#{name.replace('_', '-')}", value)
        self.page.click("#send")

    def wait_answered(self) -> dict[str, str]:
        """The statistics below the answer."""
        self.page.wait_for_selector("#facts:visible, #problem:visible")
        assert not self.page.is_visible("#problem"), self.page.inner_text("#problem")
        terms, values = (self.page.locator(f"#facts {tag}").all_inner_texts() for tag in ("dt", "dd"))
        return dict(zip(terms, values, strict=True))

    def card(self) -> "ElementHandle":
        """The first request's card, also after it was removed."""
        card = self.page.wait_for_function("() => seen.cards[0]").as_element()
        assert card is not None
        return card

    def wait_seen(self, kind: str) -> None:
        """Wait until a token of this kind has been on the page."""
        self.page.wait_for_function("kind => seen.kinds.has(kind)", arg=kind)


@pytest.fixture(scope="module")
def page() -> Iterator["Page"]:
    """One page for all tests: a new one takes three times as long to open the inspector."""
    with browsing() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(TIMEOUT_MS)
        page.add_init_script(RECORD_ALL)
        yield page


@pytest.fixture
def visit(page: "Page", server: Server) -> Iterator[Visit]:
    visit = Visit(page, server)
    yield visit
    visit.end()
    assert visit.problems == []


def wait_ended(card: "ElementHandle") -> None:
    card.evaluate(
        """one => new Promise((resolve) => {
          const look = () => (one.classList.contains("ended") ? resolve() : setTimeout(look, 20));
          look();
        })"""
    )


def count(card: "ElementHandle", selector: str) -> int:
    return len(card.query_selector_all(selector))


def line(card: "ElementHandle", selector: str) -> str:
    found = card.query_selector(selector)
    assert found is not None
    return found.text_content() or ""


def test_tokens_appear_and_rolled_back_ones_disappear(visit: Visit, server: Server) -> None:
    visit.ask(max_tokens="24")
    card = visit.card()
    for kind in (
        "prompt",
        "unwritten",
        "candidate",
        "rolled-back",
        "committed",
        "accepted",
        "same",
        "differs",
    ):
        visit.wait_seen(kind)
    facts = visit.wait_answered()
    wait_ended(card)
    assert count(card, ".strip .accepted") == int(re.findall(r"(\d+) accepted", facts["Candidates"])[0])
    assert count(card, ".strip .unwritten") == 1  # the last token, which no pass reads
    for pair in card.query_selector_all(".verdicts > span:has(.committed)"):
        said = [one.text_content() for one in pair.query_selector_all(".token")]
        assert ("same" in (pair.get_attribute("class") or "")) == (said[0] == said[1])
    body = {
        "messages": [{"role": "user", "content": "the quick brown fox"}],
        "deterministic": True,
        "seed": int(SEED),
    }
    answer = server.post(
        "/v1/chat/completions", {**body, "temperature": 0.8, "max_completion_tokens": 24}
    ).json()
    usage = answer["usage"]
    assert count(card, ".token.prompt") == usage["prompt_tokens"]
    assert count(card, ".strip .token.committed") == usage["completion_tokens"]
    assert visit.page.text_content("#answer") == answer["choices"][0]["message"]["content"]
    assert (facts["Mode"], facts["Seed"]) == ("verified", SEED)
    assert facts["Tokens"] == f"{usage['prompt_tokens']} in, {usage['completion_tokens']} out"
    assert facts["Fingerprint"] == answer["system_fingerprint"]
    assert re.search(r"Step \d+, [\d.]+ ms: ", visit.page.inner_text("#step-note"))
    assert all(url.startswith((server.url, "blob:", "data:")) for url in visit.requested)
    rolled_back = int(re.findall(r"(\d+) rolled back", facts["Candidates"])[0])
    assert rolled_back > 0 and f"{rolled_back} rolled back" in line(card, ".facts-line")
    visit.page.wait_for_selector(".request", state="detached")


@pytest.mark.long
def test_prove_it_shows_one_distinct_output(visit: Visit) -> None:
    visit.page.fill("#max-tokens", "12")
    visit.page.select_option("#times", "8")
    visit.page.click("#prove-go")
    visit.page.wait_for_selector("#prove-go:enabled", timeout=3 * TIMEOUT_MS)
    side = visit.page.locator("[data-side=deterministic]")
    assert side.locator(".verdict").inner_text().startswith("8 of 8 identical: 1 distinct output.")
    assert side.locator(".verdict").get_attribute("data-outcome") == "same"
    assert side.locator(".group").count() == 1
    ordinary = visit.page.locator("[data-side=ordinary]")
    assert "8 of 8" in ordinary.inner_text() or "8 runs" in ordinary.inner_text()
    agreed = ordinary.locator(".verdict").get_attribute("data-outcome") == "same"
    assert visit.page.locator(".recorded").count() == (len(recording_files()) if agreed else 0)
    assert visit.page.is_hidden("#prove-progress")
    assert re.match(r"Done after \d+ s\.", visit.page.inner_text("#prove-note"))
    assert len({url for url in visit.requested if url.endswith("/v1/completions")}) == 1, "there was no load"
    assert sum(url.endswith("/v1/chat/completions") for url in visit.requested) == 16


@pytest.mark.long
def test_receipt_can_be_downloaded(visit: Visit, server: Server, tmp_path: Path) -> None:
    visit.ask(max_tokens="8")
    visit.wait_answered()
    with visit.page.expect_download() as download:
        visit.page.click("#receipt")
    file = tmp_path / "receipt.json"
    download.value.save_as(file)
    assert server.post("/v1/replay", {"receipt": json.loads(file.read_text())}).status_code == 200


@pytest.mark.long
def test_controls_have_accessible_names(visit: Visit) -> None:
    nameless = visit.page.eval_on_selector_all(
        "input, textarea, select, button, canvas",
        """all => all.filter((one) => !(one.labels?.length || one.textContent.trim()
              || one.getAttribute("aria-label") || one.getAttribute("aria-labelledby"))).map((one) => one.outerHTML)""",
    )
    assert nameless == []


@pytest.mark.long
def test_text_is_never_markup(visit: Visit) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script><b>bold</b>"
    visit.page.on("dialog", lambda dialog: visit.problems.append(dialog.message))
    visit.ask(hostile, max_tokens="6")
    card = visit.card()
    visit.wait_answered()
    wait_ended(card)
    strip = line(card, ".strip")
    assert "script" in strip and "onerror" in strip
    assert count(card, ".strip img, .strip script, .strip b") == 0
    assert visit.page.locator("#answer *").count() == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("texts", "bits", "deterministic", "outcome", "words"),
    [
        (
            "aaaa",
            "1111",
            True,
            "same",
            "4 of 4 identical: 1 distinct output. All logprobs are bitwise identical",
        ),
        ("aaaa", "1121", True, "differ", "different sets of logprobs. This is a bug"),
        ("aaaa", "1111", False, "same", "happened to agree; ordinary requests have no guarantee"),
        ("abca", "1231", False, "differ", "4 runs, 3 distinct outputs."),
    ],
)
def test_verdict_of_compared_outputs(
    visit: Visit, texts: str, bits: str, deterministic: bool, outcome: str, words: str
) -> None:
    outputs = [{"text": text, "logprobs": bit} for text, bit in zip(texts, bits, strict=True)]
    program = "async ([outputs, deterministic]) => (await import('/inspector/compare.js')).judge(outputs, deterministic)"
    found = visit.page.evaluate(program, [outputs, deterministic])
    assert found["outcome"] == outcome
    assert words in found["sentence"]
