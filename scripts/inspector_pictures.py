"""Make the screenshots of the inspector for the docs: `python scripts/inspector_pictures.py docs [dark] [prove]
...`.

light    mode verify, with injected faults, so that a rollback is visible
phone    an answer in the playground
thoughts a thinking model reads a question, with slow steps; only the request is shown
dark     mode auto, while "prove it" runs
prove    the result of "prove it", with a recording where this machine's ordinary answers agree
"""

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.browsing import browsing
from support.serving import Server, serving

WIDE = {"viewport": {"width": 1280, "height": 950}}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
NEIGHBOURS = (
    ("Name three rivers of Portugal.", True),
    ("Write one line about a lighthouse keeper.", False),
    ("What would happen without the tide?", True),
)
STEPS = 85
PATIENCE = 1_500_000.0


@contextmanager
def neighbours(server: Server, count: int) -> Iterator[None]:
    """Run other requests meanwhile."""
    asking = True

    def ask(prompt: str, deterministic: bool) -> None:
        while asking:
            body = {
                "messages": [{"role": "user", "content": prompt}],
                "deterministic": deterministic,
                "max_tokens": 40,
            }
            server.post("/v1/chat/completions", body)

    threads = [threading.Thread(target=ask, args=one) for one in NEIGHBOURS[:count]]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        asking = False
        for thread in threads:
            thread.join()


def visit(browser: Any, server: Server, **context: Any) -> Any:
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(server.url)
    page.wait_for_selector("#fingerprint:not(:empty)")
    return page


def wait_steps(page: Any) -> None:
    """Wait until the timeline has steps to show."""
    while int((re.search(r"Step (\d+)", page.inner_text("#step-note")) or ["", "0"])[1]) < STEPS:
        time.sleep(0.5)


def show_rollback(page: Any, file: Path) -> None:
    """Send a request and take the screenshot while a rolled-back token is red."""
    page.fill("#max-tokens", "120")
    page.click("#send")
    page.wait_for_selector(".request:nth-of-type(n + 2) .token.committed")
    wait_steps(page)
    in_time = False
    while not in_time:
        page.wait_for_selector(".deterministic .strip:has(.rolled-back):has(.candidate)")
        page.screenshot(path=file)
        still_red = "all => all.some((one) => Number(getComputedStyle(one).opacity) > 0.9)"
        in_time = page.eval_on_selector_all(".deterministic .strip .token.rolled-back", still_red)
    page.context.close()


def show_proof(page: Any, file: Path) -> None:
    page.fill("#seed", "7")
    page.click("#prove-go")
    page.wait_for_selector("#prove-go:enabled")
    page.wait_for_selector(".request", state="detached")
    page.wait_for_timeout(500)  # the recordings are loaded
    page.locator(".proof").screenshot(path=file)


def light(browser: Any, folder: Path) -> None:
    settings = {"wrong_candidates": 0.2, "slow": 0.01}
    with (
        serving(
            None, "--determinism", "verify", engine="faulty_engine.py", engine_settings=settings
        ) as server,
        neighbours(server, 3),
    ):
        page = visit(browser, server, reduced_motion="reduce", **WIDE)  # rejected tokens do not fade
        show_rollback(page, folder / "inspector-light.png")


def thoughts(browser: Any, folder: Path) -> None:
    settings = {"slow": 0.5}
    with serving(
        "coin", "--determinism", "verify", engine="faulty_engine.py", engine_settings=settings
    ) as server:
        page = visit(browser, server, reduced_motion="reduce", **WIDE)
        page.check("input[name=mode][value=raw]")
        page.fill("#prompt", "A coin's state is heads. Alice flips, then Bob flips. What's the state? A:")
        page.click("#send")
        page.wait_for_selector(".chunk .wrong")
        page.locator(".running").screenshot(path=folder / "inspector-thoughts.png")
        page.context.close()


def phone(browser: Any, folder: Path) -> None:
    with serving(None) as server:
        page = visit(browser, server, **PHONE)
        page.click("#send")
        page.wait_for_selector("#facts:visible")
        page.evaluate("() => scrollTo(0, 0)")
        page.screenshot(path=folder / "inspector-phone.png")
        page.context.close()


def dark(browser: Any, folder: Path) -> None:
    with serving(None) as server:
        page = visit(browser, server, color_scheme="dark", **WIDE)
        page.fill("#seed", "7")
        page.click("#prove-go")
        page.wait_for_selector("[data-side=ordinary] .tally i[data-group]:nth-child(4)")
        page.screenshot(path=folder / "inspector-dark.png")
        page.context.close()


def prove(browser: Any, folder: Path) -> None:
    with serving(None) as server:
        show_proof(visit(browser, server, **WIDE), folder / "inspector-prove.png")


if __name__ == "__main__":
    chosen = sys.argv[2:] or ["light", "thoughts", "phone", "dark", "prove"]
    with browsing() as browser:
        for name in chosen:
            globals()[name](browser, Path(sys.argv[1]))
