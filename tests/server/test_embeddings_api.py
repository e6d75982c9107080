"""POST /v1/embeddings: the forms of an embedding, and the same bits alone, in a batch and under load."""

import base64
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.bodies import answer_of
from support.serving import Server
from support.tiny import HIDDEN_SIZE

TEXTS = ["the quick brown fox", "a", "jumps over the lazy dog, and then the dog sleeps", "1 2 3"]


def embed(server: Server, **body: Any) -> dict[str, Any]:
    return answer_of(server, "/v1/embeddings", body)


def vectors(server: Server, **body: Any) -> list[list[float]]:
    return [one["embedding"] for one in embed(server, deterministic=True, **body)["data"]]


def test_response_has_mode_and_fingerprint(tiny_server: Server) -> None:
    ordinary, both = embed(tiny_server, input="a"), embed(tiny_server, input=["a", "b"], deterministic=True)
    assert ordinary["holdfast"]["mode"] == "none" and "seed" not in ordinary["holdfast"]
    assert both["holdfast"]["mode"] in ("certified", "verified") and len(both["holdfast"]["requests"]) == 2
    certificate = tiny_server.get("/v1/certificate").json()
    assert both["system_fingerprint"] == certificate["fingerprint"]["digest"]
    assert both["id"].startswith("embd-") and set(both["usage"]) >= {"prompt_tokens", "total_tokens"}


def test_server_default_decides_the_mode(deterministic_server: Server) -> None:
    assert embed(deterministic_server, input="a")["holdfast"]["mode"] in ("certified", "verified")
    assert embed(deterministic_server, input="a", deterministic=False)["holdfast"]["mode"] == "none"


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_same_bits_alone_in_a_batch_and_under_load(tiny_server: Server, pooling: str) -> None:
    alone = [vectors(tiny_server, input=text, pooling=pooling)[0] for text in TEXTS]
    busy = {"prompt": TEXTS, "max_tokens": 30, "ignore_eos": True}
    with ThreadPoolExecutor(3) as pool:
        load = [pool.submit(tiny_server.post, "/v1/completions", busy) for _ in range(2)]
        batch = vectors(tiny_server, input=TEXTS[::-1], pooling=pooling)
        assert all(one.result().status_code == 200 for one in load)
    assert batch[::-1] == alone
    ids = [tiny_server.post("/tokenize", {"prompt": text}).json()["tokens"] for text in TEXTS]
    assert vectors(tiny_server, input=ids, pooling=pooling) == alone
    assert vectors(tiny_server, input=ids[0], pooling=pooling) == alone[:1]


def test_forms_of_an_embedding(tiny_server: Server) -> None:
    (raw,) = vectors(tiny_server, input="a", normalize=False)
    (short,) = vectors(tiny_server, input="a", normalize=False, dimensions=3)
    assert short == raw[:3] and len(raw) == HIDDEN_SIZE
    (encoded,) = vectors(tiny_server, input="a", normalize=False, encoding_format="base64")
    assert list(struct.unpack(f"<{HIDDEN_SIZE}f", base64.b64decode(str(encoded)))) == raw
    assert vectors(tiny_server, input=[[5] * 600], truncate_prompt_tokens=2) == vectors(
        tiny_server, input=[5, 5]
    )
    whole = {"input": [5] * 600, "truncate_prompt_tokens": -1}
    assert embed(tiny_server, **whole)["usage"]["prompt_tokens"] == 512


def test_more_inputs_than_places_wait(tiny_server: Server) -> None:
    many = [[number % 300] for number in range(64)]  # of 16 sequences that run at once
    assert vectors(tiny_server, input=many)[40] == vectors(tiny_server, input=many[40:41])[0]
