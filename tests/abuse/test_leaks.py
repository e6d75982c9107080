"""No tenant learns what another asked: neither from the inspector nor by guessing what is cached."""

import json
import threading
import time
from typing import Any

import httpx
import pytest

from abuse.honest import Honest
from abuse.wire import Target

PATIENCE = 20.0
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


@pytest.fixture
def mallory(hostile: list[Target]) -> Honest:
    """The client of a hostile tenant, for single requests."""
    return Honest(hostile[0], PATIENCE)


def test_inspector_shows_no_other_tenants_prompts(honest: Honest, hostile: list[Target]) -> None:
    seen: list[tuple[int, str]] = []
    watching = threading.Thread(target=lambda: seen.append(watch_inspector(hostile[0], 0.8)))
    watching.start()
    while watching.is_alive():
        status, _ = honest.send("/v1/completions", {"prompt": SECRET, "max_tokens": 4, "ignore_eos": True})
        assert status == 200
    status, events = seen[0]
    assert status in (200, 403, 404)
    assert not [text for text in shown_texts(events) if text], "another tenant's tokens were shown"


def test_cached_tokens_do_not_tell_what_another_tenant_asked(honest: Honest, mallory: Honest) -> None:
    status, _ = honest.send("/v1/completions", {"prompt": PADDING + SECRET, "max_tokens": 1})
    assert status == 200
    guesses = [PADDING + SECRET[:-2] + pin for pin in ("41", "73", "99")]
    found = guess(mallory, guesses[1:2])
    assert found[guesses[1]] == 0, "a prompt of another tenant was found in the cache"
    assert guess(honest, guesses[1:2])[guesses[1]] > 0  # its own prompt is


def test_salt_hides_cached_prompts_from_the_same_key(honest: Honest) -> None:
    cached = []
    for salt in ("a", "b", "a"):
        body = {"prompt": PADDING + "salted", "max_tokens": 1, "cache_salt": salt}
        _, answer = honest.send("/v1/completions", body)
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
    assert cached == [False, False, True]


@pytest.mark.long
def test_pin_cannot_be_guessed(honest: Honest, mallory: Honest) -> None:
    """The guesses of one PIN share a prefix of their own; the right one does not stand out."""
    honest.send("/v1/completions", {"prompt": PADDING + SECRET + PADDING, "max_tokens": 1})
    found = guess(mallory, [PADDING + SECRET[:-2] + f"{pin:02}" + PADDING for pin in range(100)])
    right = found.pop(PADDING + SECRET + PADDING)
    assert right in set(found.values())
