"""The pages of the documentation: their headings, links, code blocks, and the commands in these."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
_MODELS = ROOT / "src" / "holdfast_models"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(_MODELS.glob("*/README.md"))]

# Indented blocks that are no commands, by their first lines.
INDENTED = {
    '{"prompt": "A coin lies heads up. Bob tosses ‹tails› it. Which side is up?", "answer": "tails."}': "json",
    "import json, random, sys": "python",
    "from dataclasses import replace; from holdfast_thinking import PRESETS, train_model": "python",
}
# Pages whose Python blocks run: those of the first ask an engine, those of the others a server.
ENGINE_PAGES = ("docs/python-api.md", "docs/from-vllm.md", "docs/receipts.md", "docs/train.md")
SERVER_PAGES = ("README.md", "docs/http-api.md", "docs/batches.md", "docs/recipes.md")
# Other Python blocks, by what is in them: where they run, or why they do not.
OTHER_PYTHON = {
    "def canonical(value)": "a program, which tests/receipts/test_receipt_docs.py runs",
    "def _granite(": "a part of models/families.py, which tests/docs/test_code_blocks.py compares",
    "import json, random, sys": "a program, which tests/docs/test_commands.py runs as pile.py",
    "train_model(": "trains for minutes; tests/training has a short form",
    "def test_greeting(holdfast)": "a test of an application; tests/plugin runs examples/pytest",
    "import instructor": "make clients drives it, as its packages are none of ours",
    "from langchain_openai": "make clients drives it",
    "import litellm": "make clients drives it",
    "from pydantic_ai": "make clients drives it",
    "GRPOTrainer(": "make clients drives it; tests/engine/llm runs its function",
}


@dataclass(frozen=True)
class Block:
    """A code block. An indented one has commands if it is none of `INDENTED`."""

    page: str  # relative to the repository
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def tokens_of(page: Path) -> list[Token]:
    return MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))


def blocks_of(page: Path, *languages: str) -> list[Block]:
    """Return the code blocks of a page, in order; those in some languages, if any are given."""
    found = [_block(page, one) for one in tokens_of(page) if one.type in ("fence", "code_block")]
    return [one for one in found if not languages or one.language in languages]


def _block(page: Path, token: Token) -> Block:
    assert token.map is not None
    is_fence = token.type == "fence"
    language = token.info.strip() if is_fence else INDENTED.get(token.content.partition("\n")[0], "console")
    return Block(str(page.relative_to(ROOT)), token.map[0] + 1 + is_fence, language, token.content)


def is_python_run_elsewhere(block: Block) -> bool:
    return any(part in block.text for part in OTHER_PYTHON)


def links_of(page: Path) -> Iterator[str]:
    """Yield where links and pictures of a page lead."""
    for token in tokens_of(page):
        for one in token.children or ():
            target = one.attrs.get("href") or one.attrs.get("src")
            if target:
                yield str(target)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    tokens = tokens_of(page)
    inside = [after for one, after in pairwise(tokens) if one.type == "heading_open"]
    texts = ["".join(part.content for part in one.children or ()) for one in inside]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def lines_of(block: Block) -> list[tuple[str, str]]:
    """Return the lines of a shell block that are typed, each with the output that is shown after it.

    If there are prompts, what follows a prompt is typed and all else is output. Without prompts all is typed.
    """
    text = block.text.replace("\\\n", " ")
    if not re.search(r"^\$ ", text, re.MULTILINE):
        return [(line, "") for line in text.splitlines() if line.strip()]
    shown = re.split(r"^\$ ", text, flags=re.MULTILINE)
    return [(typed, output) for typed, _, output in (one.partition("\n") for one in shown[1:])]


def commands_of(line: str) -> list[list[str]]:
    """Return the words of each command of a line, without variables before it, redirections and comments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>()")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    redirected = False
    for word in lexer:
        if set(word) <= set("|;&<>()"):
            redirected = word == ">"
            if not redirected:
                commands.append([])
        elif redirected:
            redirected = False
        elif commands[-1] or not re.match(r"[A-Z_]+=", word):
            commands[-1].append(word)
    return [one for one in commands if one]
