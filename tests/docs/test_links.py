"""Links of the documentation lead to files and headings that exist, and the site loads its own files only."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support.browsing import browsing
from support.documents import PAGES, ROOT, anchors_of, links_of

SITE = ROOT / "build" / "site"


def test_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in links_of(page) if "://" not in link]
    assert len(links) > 200
    for page, link in links:
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors_of(target), f"{page.name} links to {link}"


class Files(SimpleHTTPRequestHandler):
    """The files of the site, without a log."""

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.long
@pytest.mark.skipif(not SITE.exists(), reason="make docs has not run")
def test_site_is_shown_and_searched_without_another_host() -> None:
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(SITE))) as server,
        browsing() as browser,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for name in ("index", "receipts", "models/coin"):
            page.goto(f"{url}{name}.html", wait_until="networkidle")
        page.keyboard.press("/")
        page.keyboard.type("rollback")
        page.wait_for_selector(".md-search-result__item")
        server.shutdown()
    assert len(asked) > 10 and all(one.startswith((url, "data:", "blob:")) for one in asked)
