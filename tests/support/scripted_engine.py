"""An engine process without a model that answers what the prompt tells it to: `scripted_engine.py FD`.

The last [[...]] in the prompt's text is the answer. Special tokens written there are special tokens
of the answer. The answer ends with an end-of-text token, or at max_tokens. Tokens come one, two or
three in a delta. Grammars are not compiled. HOLDFAST_TEST_ENGINE names the tokenizer's folder.
"""

import contextlib
import json
import os
import re
import socket
import sys
from pathlib import Path

import msgspec
from fake_engine import READY, SEED, status

from holdfast.core.framing import ConnectionLost, read_frame
from holdfast.core.request import Request
from holdfast.core.results import Delta, RequestOutput, Result, Stats
from holdfast.core.step_plan import TokenLogprob
from holdfast.server.ipc import messages as m
from holdfast.text.detokenizer import Detokenizer
from holdfast.text.tokenizer import Tokenizer, open_tokenizer

_SCRIPT = re.compile(r"\[\[((?:(?!\[\[).)*?)\]\]", re.DOTALL)
_SIZES = (1, 2, 3)


def deltas(tokenizer: Tokenizer, request: Request) -> list[Delta]:
    """The deltas of a scripted answer."""
    params = request.params
    script = _SCRIPT.findall(tokenizer.decode(request.prompt_ids, skip_special_tokens=False))[-1]
    ids = tokenizer.encode(script, add_special_tokens=False)
    ids = ids if ids and ids[-1] in tokenizer.eos_token_ids else [*ids, min(tokenizer.eos_token_ids)]
    is_cut = len(ids) > params.max_tokens
    ids = ids[: params.max_tokens]
    detokenizer = Detokenizer(tokenizer, request.prompt_ids, skip_special_tokens=params.skip_special_tokens)
    made: list[Delta] = []
    at = 0
    while at < len(ids):
        new = ids[at : at + _SIZES[len(made) % len(_SIZES)]]
        at += len(new)
        text = "".join(detokenizer.push(one) for one in new if one not in tokenizer.eos_token_ids)
        logprobs = tuple(TokenLogprob(one, -1.0, ()) for one in new)
        wanted = params.logprobs is not None
        made.append(Delta(text, tuple(new), logprobs if wanted else None))
    last = Delta(detokenizer.flush(), finish_reason="length" if is_cut else "stop")
    return [*made[:-1], made[-1].ended_by(last)]


def main() -> None:
    tokenizer = open_tokenizer(Path(json.loads(os.environ["HOLDFAST_TEST_ENGINE"])["tokenizer"]))
    link = socket.socket(fileno=int(sys.argv[-1]))
    read_frame(link)
    ready = msgspec.structs.replace(READY, vocab_size=320, max_model_len=4096, num_kv_positions=4096)
    link.sendall(m.encode([ready, m.FingerprintReady("abc", {})]))
    with contextlib.suppress(ConnectionLost):
        while True:
            message = m.decode_to_engine(read_frame(link))
            if isinstance(message, m.Submit):
                *first, last = deltas(tokenizer, message.request)
                result = Result((), (), SEED, "none", Stats())
                id_ = message.request.request_id
                outputs = [RequestOutput(id_, one) for one in first] + [RequestOutput(id_, last, result)]
                link.sendall(m.encode([m.Accepted(id_)]))
                link.sendall(m.encode([m.StepOutput((m.Started(id_, 0.0),), ())]))
                link.sendall(m.encode([m.StepOutput((), (one,)) for one in outputs]))
            elif isinstance(message, m.GetStatus):
                link.sendall(m.encode([status(0)]))
            elif isinstance(message, m.Stop):
                return


if __name__ == "__main__":
    main()
