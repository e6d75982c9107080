"""The server that is attacked: a tiny random model with a context of 4,096 tokens and three keys.

One token of its vocabulary is long, as in many vocabularies, so that long texts cannot be refused by
their length alone.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from abuse.attacks import ATTACKS
from abuse.honest import Honest
from abuse.wire import Target
from support.serving import Server, serving
from support.tiny import tiny_model

HONEST_KEY = "key-of-the-honest-tenant"
HOSTILE_KEYS = ("key-of-the-first-hostile-tenant", "key-of-the-second-hostile-tenant")
MAX_CONNECTIONS = 256
MAX_MODEL_LEN = 4096
_LONG_TOKEN = {
    "id": 310,
    "content": "=" * 128,
    **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False),
}


def attacked_model(folder: Path) -> Path:
    model = tiny_model(folder / "llama", max_position_embeddings=MAX_MODEL_LEN)
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"].append(_LONG_TOKEN)
    path.write_text(json.dumps(tokenizer))
    return model


@contextmanager
def attacked_server(
    model: Path, *arguments: str, keys: tuple[str, ...] = (HONEST_KEY, *HOSTILE_KEYS)
) -> Iterator[Server]:
    limits = ("--max-num-seqs", "16", "--kv-memory", "64MiB", "--max-connections", str(MAX_CONNECTIONS))
    times = ("--send-timeout", "2")
    given = [part for key in keys for part in ("--api-key", key)]
    with serving(model, "--served-model-name", "tiny", *limits, *times, *given, *arguments) as server:
        wait_certified(server)
        yield server


def wait_certified(server: Server, seconds: float = 120.0) -> None:
    """Wait until the certificate is complete: until then the engine works on it between steps."""
    until = time.monotonic() + seconds
    while server.get("/health").json()["certificate"]["state"] == "certifying":
        assert time.monotonic() < until, "the certificate is not complete in time"
        time.sleep(0.05)


def with_proxy(
    name: str, request: pytest.FixtureRequest, honest: Honest, hostile: list[Target]
) -> tuple[Honest, list[Target]]:
    """The clients, behind nginx if the attack needs it. There the hostile ones have another address."""
    if not ATTACKS[name].behind_proxy:
        return honest, hostile
    url = request.getfixturevalue("proxied")
    targets = [replace(one, url=url, source=f"127.0.0.{2 + at}") for at, one in enumerate(hostile)]
    return Honest(replace(honest.target, url=url), honest.patience), targets
