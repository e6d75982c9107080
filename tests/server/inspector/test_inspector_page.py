"""The inspector page in a real browser, on a server with injected faults: tokens, commits and
rollbacks are shown.
"""

import json
import re
from collections.abc import Iterator
from itertools import cycle, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.recordings import recording_files
from support.browsing import browsing
from support.serving import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ElementHandle, Page, Route

SEED = "7"  # the completion has 24 tokens and rollbacks; with other seeds it may end early
TIMEOUT_MS = 60_000.0
# Some elements exist only for a moment, and polling could miss them on a busy machine. So the page
# records them.
RECORD_ALL = """
  window.seen = { cards: [], kinds: new Set(), rolled: null };
  new MutationObserver(() => {
    for (const one of document.querySelectorAll(".request"))
      if (!seen.cards.includes(one)) seen.cards.push(one);
    for (const one of document.querySelectorAll(".strip .token")) {
      for (const kind of one.classList) seen.kinds.add(kind);
      if (seen.rolled === null && one.classList.contains("rolled-back")) {
        const { backgroundColor, textDecorationLine } = getComputedStyle(one);
        seen.rolled = { element: one, style: { backgroundColor, textDecorationLine } };
      }
    }
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


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with browsing() as browser:
        yield browser


def new_context(browser: "Browser", **settings: Any) -> "BrowserContext":
    """A browser without a past."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
    context.set_default_timeout(TIMEOUT_MS)
    context.add_init_script(RECORD_ALL)
    return context


@pytest.fixture(scope="module")
def context(browser: "Browser") -> Iterator["BrowserContext"]:
    """Shared by the pages of tests that leave nothing behind in it."""
    context = new_context(browser)
    yield context
    context.close()


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
        self.page.unroute_all()
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

    def colour(self, selector: str, name: str = "background-color") -> str:
        found: str = self.page.eval_on_selector(selector, f"one => getComputedStyle(one)['{name}']")
        return found


@pytest.fixture(scope="module")
def shared_page(context: "BrowserContext") -> "Page":
    """One page for most tests: a new one takes three times as long to open the inspector."""
    return context.new_page()


@pytest.fixture
def visit(shared_page: "Page", server: Server) -> Iterator[Visit]:
    visit = Visit(shared_page, server)
    yield visit
    visit.end()
    assert visit.problems == []


@pytest.fixture(scope="module")
def page(context: "BrowserContext", server: Server) -> Iterator["Page"]:
    """One page for all tests of pure functions."""
    visit = Visit(context.new_page(), server)
    yield visit.page
    visit.page.close()
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


def is_reddish(colour: str) -> bool:
    red, green, blue = (int(one) for one in re.findall(r"\d+", colour)[:3])
    return red > green + 20 and red > blue + 20


def test_tokens_appear(visit: Visit, server: Server) -> None:
    visit.ask(max_tokens="24")
    card = visit.card()
    for kind in ("prompt", "candidate", "committed"):
        visit.wait_seen(kind)
    facts = visit.wait_answered()
    wait_ended(card)
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
    assert count(card, ".token.committed") == usage["completion_tokens"]
    assert visit.page.text_content("#answer") == answer["choices"][0]["message"]["content"]
    assert (facts["Mode"], facts["Seed"]) == ("verified", SEED)
    assert facts["Tokens"] == f"{usage['prompt_tokens']} in, {usage['completion_tokens']} out"
    assert facts["Fingerprint"] == answer["system_fingerprint"]
    assert re.search(r"Step \d+, [\d.]+ ms: ", visit.page.inner_text("#step-note"))
    assert all(url.startswith((server.url, "blob:", "data:")) for url in visit.requested)
    visit.page.wait_for_selector(".request", state="detached")


def test_rolled_back_tokens_turn_red_and_disappear(visit: Visit) -> None:
    visit.ask(max_tokens="24")
    card = visit.card()
    visit.wait_seen("rolled-back")
    assert is_reddish(visit.colour(".key .token.rolled-back"))
    state = visit.page.evaluate("() => seen.rolled.style")
    assert is_reddish(state["backgroundColor"])
    assert state["textDecorationLine"] == "line-through"
    visit.page.wait_for_function("() => !seen.rolled.element.isConnected")
    facts = visit.wait_answered()
    rolled_back = int(re.findall(r"(\d+) rolled back", facts["Candidates"])[0])
    assert rolled_back > 0
    visit.page.wait_for_selector(".strip .token.rolled-back", state="detached")
    wait_ended(card)
    assert f"{rolled_back} rolled back" in line(card, ".facts-line")
    shown = int(visit.page.inner_text("[data-counter=rolled-back] dd").replace(",", ""))
    assert shown == rolled_back


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


def answer_in_the_browser(visit: Visit, *, ordinary_texts: Iterator[str]) -> None:
    """Answer the page's requests without the server: deterministic ones all alike, ordinary ones with
    these texts.
    """

    def respond(route: "Route") -> None:
        body = json.loads(route.request.post_data or "{}")
        text = "one answer" if body["deterministic"] else next(ordinary_texts)
        logprobs = {"content": [{"logprob": -0.5}]}
        choice = {"index": 0, "message": {"content": text}, "logprobs": logprobs, "finish_reason": "stop"}
        route.fulfill(json={"choices": [choice], "holdfast": {"mode": "certified"}})

    visit.page.route("**/v1/chat/completions", respond)
    visit.page.route("**/v1/completions", lambda route: route.fulfill(json={"choices": []}))


def prove(visit: Visit) -> None:
    visit.page.select_option("#times", "8")
    visit.page.click("#prove-go")
    visit.page.wait_for_selector("#prove-go:enabled")


def test_proof_marks_where_an_ordinary_answer_differs_from_the_one_alone(visit: Visit) -> None:
    answer_in_the_browser(visit, ordinary_texts=cycle(["tide in", "tide out", "tide out", "tide out"]))
    prove(visit)
    ordinary = visit.page.locator("[data-side=ordinary]")
    assert ordinary.locator(".verdict").inner_text() == "8 runs, 2 distinct outputs."
    assert ordinary.locator(".group b").all_inner_texts() == ["6 ×", "2 ×\nincl. alone"]
    assert ordinary.locator("mark").all_inner_texts() == ["o"]
    assert ordinary.locator(".tally i[data-group='1']").count() == 6
    assert (
        visit.page.locator("[data-side=deterministic] .verdict").inner_text().startswith("8 of 8 identical")
    )
    assert visit.page.locator(".recorded").count() == 0, "a live difference needs no recording"


def test_proof_shows_recordings_where_ordinary_answers_agree(visit: Visit) -> None:
    answer_in_the_browser(visit, ordinary_texts=repeat("tide in"))
    prove(visit)
    assert "happened to agree" in visit.page.inner_text("[data-side=ordinary] .verdict")
    visit.page.wait_for_selector(".recorded")
    shown = visit.page.locator(".recorded").all_inner_texts()
    recordings = [json.loads(one) for one in recording_files()]
    assert len(shown) == len(recordings) > 0
    for text, recording in zip(shown, recordings, strict=True):
        answers = len(recording["ordinary"]["answers"])
        made = f"Not live: recorded on {recording['date']} on {recording['machine']['device']}"
        assert made in text and f"{answers} distinct outputs" in text
        assert "under the same loads: 1 distinct output." in text


def test_receipt_can_be_downloaded(visit: Visit, server: Server, tmp_path: Path) -> None:
    visit.ask(max_tokens="8")
    visit.wait_answered()
    with visit.page.expect_download() as download:
        visit.page.click("#receipt")
    file = tmp_path / "receipt.json"
    download.value.save_as(file)
    replayed = server.post("/v1/replay", {"receipt": json.loads(file.read_text())})
    assert replayed.status_code == 200, replayed.text


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
def test_phone_layout_does_not_scroll_sideways(browser: "Browser", server: Server) -> None:
    size = {"width": 360, "height": 740}
    context = new_context(browser, viewport=size, is_mobile=True, has_touch=True, device_scale_factor=2)
    phone = Visit(context.new_page(), server)
    phone.ask("a rather long prompt, " * 5, max_tokens="24")
    phone.wait_seen("committed")
    phone.wait_answered()
    answer_in_the_browser(phone, ordinary_texts=repeat("tide in"))
    prove(phone)
    phone.page.wait_for_selector(".recorded")
    assert phone.page.evaluate("() => document.documentElement.scrollWidth") == 360
    sizes = phone.page.eval_on_selector_all(
        "input:not([type=radio], [type=checkbox]), textarea, select",
        "all => all.map((one) => parseFloat(getComputedStyle(one).fontSize))",
    )
    assert sizes and min(sizes) >= 16
    tops = [
        phone.page.eval_on_selector(one, "one => one.getBoundingClientRect().top + scrollY")
        for one in (".playground", ".prove", ".proof", ".passes", ".running")
    ]
    assert tops == sorted(tops) and tops[0] < 200, "the playground comes first, the proof below its button"
    phone.page.tap("[data-counter=pages]")
    assert "KV cache" in phone.page.inner_text("#tip")
    assert phone.problems == []
    context.close()


def test_controls_have_accessible_names(page: "Page") -> None:
    nameless = page.eval_on_selector_all(
        "input, textarea, select, button, canvas",
        """all => all.filter((one) => !(one.labels?.length || one.textContent.trim()
              || one.getAttribute("aria-label") || one.getAttribute("aria-labelledby"))).map((one) => one.outerHTML)""",
    )
    assert nameless == []


def test_browser_asks_for_the_api_key_once(browser: "Browser", tiny_llama: Path) -> None:
    with serving(tiny_llama, environment={"HOLDFAST_API_KEY": "open-sesame"}) as guarded:
        assert guarded.get("/").status_code == 401
        context = new_context(browser, http_credentials={"username": "anybody", "password": "open-sesame"})
        visit = Visit(context.new_page(), guarded)
        visit.ask(max_tokens="4")
        visit.wait_answered()
        visit.card()
        context.close()
        assert visit.problems == []


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
        ("aaba", "1121", True, "differ", "4 runs, 2 distinct outputs. This is a bug"),
        ("aaaa", "1121", True, "differ", "different sets of logprobs. This is a bug"),
        ("aaaa", "1111", False, "same", "happened to agree; ordinary requests have no guarantee"),
        ("aaaa", "1121", False, "differ", "2 different sets of logprobs"),
        ("abca", "1231", False, "differ", "4 runs, 3 distinct outputs."),
    ],
)
def test_verdict_of_compared_outputs(
    page: "Page", texts: str, bits: str, deterministic: bool, outcome: str, words: str
) -> None:
    outputs = [{"text": text, "logprobs": bit} for text, bit in zip(texts, bits, strict=True)]
    program = "async ([outputs, deterministic]) => (await import('/inspector/compare.js')).judge(outputs, deterministic)"
    found = page.evaluate(program, [outputs, deterministic])
    assert found["outcome"] == outcome
    assert words in found["sentence"]
