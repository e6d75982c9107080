"""Hooks of `make docs`: pages that lie outside docs/, the links to them, and a check of what was built.

No page may fetch a script, a style, a font or a picture from elsewhere, or name one that is not there.
"""

import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "src/holdfast_models/coin/README.md": "models/coin.md",
    "src/holdfast_models/smollm2-coin/README.md": "models/smollm2-coin.md",
}
SOURCES = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to the pages of the site. Leave only the text of a link to another part of the repository."""
    path = page.file.src_uri
    source = SOURCES.get(path, f"docs/{path}")

    def rewrite(link: re.Match[str]) -> str:
        mark, text, target, anchor = link.groups()
        named = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        found = PAGES.get(named, named.removeprefix("docs/"))
        if files.get_file_from_path(found) is None:
            return text if (ROOT / named).exists() else link[0]
        return f"{mark}[{text}]({posixpath.relpath(found, posixpath.dirname(path) or '.')}{anchor or ''})"

    return LINK.sub(rewrite, markdown)


def on_post_build(config: Any) -> None:
    """Check what the pages load."""
    site = Path(config["site_dir"])
    for page in site.rglob("*.html"):
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        for address in loads.addresses:
            folder = site if address.startswith("/") else page.parent
            if not (folder / re.sub(r"^/|[?#].*", "", address)).is_file():
                raise PluginError(
                    f"{page.relative_to(site)} loads {address}, which is not a file of the site"
                )


class Loads(HTMLParser):
    """Collect what a page loads when it is shown. `data:` addresses hold it themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        is_link = tag == "link" and given.get("rel") not in ("next", "prev", "canonical")
        address = given.get("href" if is_link else "src")
        if address and (is_link or tag != "a") and not address.startswith("data:"):
            self.addresses.append(address)
