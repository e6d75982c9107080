"""Requests with full maps of logit biases, bad words and stop strings, and every penalty."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request


async def once(target: Target, number: int) -> int:
    body = {
        "prompt": f"{number} the",
        "max_tokens": 64,
        "n": 4,
        "temperature": 1,
        "ignore_eos": True,
        "logit_bias": {str(5 + at): (at + number) % 7 - 3 for at in range(250)},
        "bad_words": [f"{at} b" for at in range(500)],
        "stop": [f"never {at}" * 40 for at in range(16)],
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "min_p": 0.01,
        "top_k": 50,
        "logprobs": 20,
    }
    return await request(target, "/v1/completions", encode(body))


ATTACK = Attack(__doc__, once, num_clients=(8, 32), in_gate=True)
