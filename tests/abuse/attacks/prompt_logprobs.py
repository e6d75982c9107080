"""Long prompts whose every token gets 20 logprobs: prompt_logprobs, echo and /v1/score."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request


async def once(target: Target, number: int) -> int:
    num = min(2000, target.max_model_len - 8)
    ids = [5 + (at * 11 + number * 17 + at * number) % 250 for at in range(num)]
    bodies = (
        ("/v1/completions", {"prompt": ids, "max_tokens": 0, "prompt_logprobs": 20}),
        ("/v1/completions", {"prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 20}),
        ("/v1/score", {"prompt": ids[: num // 2], "completion": ids[num // 2 :]}),
    )
    path, body = bodies[number % len(bodies)]
    return await request(target, path, encode(body))


ATTACK = Attack(__doc__, once, num_clients=(6, 16))
