"""What one tenant can learn of another: prompts at the inspector, cached prefixes by guessing."""

import json
import time
from typing import Any

import httpx

from abuse.honest import Honest
from abuse.wire import Target

SECRET = "the pin of the safe is 73"
PADDING = "the quick brown fox jumps over the lazy dog and sleeps. " * 3


def watch_inspector(hostile: Target, seconds: float) -> tuple[int, str]:
    """The status of /inspector/events for a hostile tenant, and what came."""
    headers = {"Authorization": f"Bearer {hostile.key}"}
    until = time.monotonic() + seconds
    seen = ""
    try:
        with httpx.stream(
            "GET", f"{hostile.url}/inspector/events", headers=headers, timeout=seconds
        ) as response:
            for text in response.iter_text():
                seen += text
                if time.monotonic() > until:
                    break
            return response.status_code, seen
    except httpx.ReadTimeout:
        return 200, seen


def shown_texts(events: str) -> list[str]:
    """The texts of the requests that the inspector's events show."""
    lines = [line.removeprefix("data: ") for line in events.splitlines() if line.startswith("data: {")]
    shown = [
        one for line in lines[:-1] for one in json.loads(line).get("requests", ())
    ]  # the last may be cut
    return ["".join(one.get("tokens", ())) for one in shown]


def cached_tokens(client: Honest, prompt: str) -> int:
    """How many tokens of a prompt the server says it had already."""
    status, answer = client.send("/v1/completions", {"prompt": prompt, "max_tokens": 1})
    assert status == 200, answer
    details: dict[str, Any] = answer["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def guess(client: Honest, prompts: list[str]) -> dict[str, int]:
    """The cached tokens of each prompt, each asked once."""
    return {prompt: cached_tokens(client, prompt) for prompt in prompts}
