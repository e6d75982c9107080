"""An engine process without a model: `fake_engine.py [START] FD`. It is ready at once.

START, or the setting of that name: ready, no_fingerprint (ready, but never sends it), fails (`StartupFailed`), dies, loads
(for ever). The first token of a prompt decides what happens to the request (`Prompt`). SIGUSR1 completes every stream.
The setting parts names further parts of its fingerprint.

With the setting tokenizer, a folder, the prompt's text is the script: the last [[...]] in it is the answer, special tokens
included. It ends with an end-of-text token, or at max_tokens. Tokens come one, two or three in a delta. Grammars are not
compiled.
"""

import contextlib
import json
import os
import re
import select
import signal
import socket
import sys
import time
from enum import IntEnum
from itertools import cycle
from pathlib import Path

import msgspec

from holdfast.core.framing import ConnectionLost, read_frame
from holdfast.core.request import Request
from holdfast.core.results import Delta, RequestOutput, Result, Stats
from holdfast.core.step_plan import TokenLogprob
from holdfast.engine.status import EngineCounters, EngineStatus
from holdfast.server.ipc import messages as m
from holdfast.text.detokenizer import Detokenizer
from holdfast.text.tokenizer import Tokenizer, open_tokenizer

SEED = 7
FLOOD_CHARS = 1 << 18
_TICK_SECONDS = 0.01
_SCRIPT = re.compile(r"\[\[((?:(?!\[\[).)*?)\]\]", re.DOTALL)
READY = m.Ready(
    vocab_size=100,
    max_model_len=100,
    max_num_seqs=4,
    num_kv_positions=100,
    refusal=None,
    certificate=None,
)


class Prompt(IntEnum):
    """What the engine does with a prompt that begins with this token."""

    ANSWER = 1
    ANSWER_TWICE = 2  # sends every frame twice
    REFUSE = 3
    GARBAGE = 4  # sends a frame that is no message
    WRONG_TYPE = 5  # sends a message with a field of a wrong type
    TOO_LONG = 6  # sends an excessive length, then does not exit
    CUT_OFF = 7  # sends half a frame, then exits
    HANG_UP = 8  # closes the socket, but does not exit
    DIE = 9
    SILENCE = 10
    UNASKED_STATUS = 11
    STREAM = 12  # a delta every few milliseconds, for ever
    FLOOD = 13  # large deltas


def answer(request_id: int) -> list[m.FromEngine]:
    """All messages about a request that is answered with "yes"."""
    delta = Delta("yes", (5,), finish_reason="stop")
    result = Result((), (), SEED, "none", Stats())
    started = (m.Started(request_id, 0.0),)
    return [
        m.Accepted(request_id),
        m.StepOutput(started, (RequestOutput(request_id, delta, result),)),
    ]


def scripted(tokenizer: Tokenizer, request: Request) -> list[m.FromEngine]:
    """All messages about a request whose prompt is a script."""
    params, id_ = request.params, request.request_id
    script = _SCRIPT.findall(tokenizer.decode(request.prompt_ids, skip_special_tokens=False))[-1]
    ids = tokenizer.encode(script, add_special_tokens=False)
    ids = ids if ids and ids[-1] in tokenizer.eos_token_ids else [*ids, min(tokenizer.eos_token_ids)]
    is_cut, ids = len(ids) > params.max_tokens, ids[: params.max_tokens]
    detokenizer = Detokenizer(tokenizer, request.prompt_ids, skip_special_tokens=params.skip_special_tokens)
    deltas: list[Delta] = []
    at, sizes = 0, cycle((1, 2, 3))
    while at < len(ids):
        new = tuple(ids[at : at + next(sizes)])
        at += len(new)
        text = "".join(detokenizer.push(one) for one in new if one not in tokenizer.eos_token_ids)
        logprobs = tuple(TokenLogprob(one, -1.0, ()) for one in new)
        deltas.append(Delta(text, new, None if params.logprobs is None else logprobs))
    end = Delta(detokenizer.flush(), finish_reason="length" if is_cut else "stop")
    *first, last = deltas
    outputs = [RequestOutput(id_, one) for one in first]
    outputs.append(RequestOutput(id_, last.ended_by(end), Result((), (), SEED, "none", Stats())))
    started = m.StepOutput((m.Started(id_, 0.0),), ())
    return [m.Accepted(id_), started, *(m.StepOutput((), (one,)) for one in outputs)]


def respond(link: socket.socket, request_id: int, prompt: Prompt) -> None:
    frames_sent = m.encode(answer(request_id))
    if prompt is Prompt.ANSWER:
        link.sendall(frames_sent)
    elif prompt is Prompt.ANSWER_TWICE:
        link.sendall(b"".join(m.encode([one, one]) for one in answer(request_id)))
    elif prompt is Prompt.REFUSE:
        link.sendall(m.encode([m.Refused(request_id, "context_length_exceeded", "too long")]))
    elif prompt is Prompt.GARBAGE:
        link.sendall((5).to_bytes(4, "little") + b"\xc1bad\xff")
    elif prompt is Prompt.WRONG_TYPE:
        link.sendall(m.encode([["Accepted", "a number"]]))
    elif prompt is Prompt.TOO_LONG:
        link.sendall(b"\xff\xff\xff\xff" + frames_sent)
        sleep_forever()
    elif prompt is Prompt.CUT_OFF:
        link.sendall(frames_sent[: len(frames_sent) // 2])
        os._exit(0)
    elif prompt is Prompt.HANG_UP:
        link.close()
        sleep_forever()
    elif prompt is Prompt.DIE:
        os.kill(os.getpid(), signal.SIGKILL)
    elif prompt is Prompt.UNASKED_STATUS:
        link.sendall(m.encode([status(0)]))


def status(num_running: int) -> m.StatusReport:
    return m.StatusReport(EngineStatus(num_running, 0, num_running, 0, 100, EngineCounters()))


class Streams:
    """Answers that continue until they are aborted or completed."""

    def __init__(self, link: socket.socket) -> None:
        self.texts: dict[int, str] = {}  # by request id: the text of each delta
        self._link = link
        self._ending = False
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "_ending", True))

    def begin(self, request_id: int, prompt: Prompt) -> None:
        self.texts[request_id] = "on " if prompt is Prompt.STREAM else "x" * FLOOD_CHARS
        self._link.sendall(m.encode([m.Accepted(request_id)]))

    def send_more(self) -> None:
        ending, self._ending = self._ending, False
        for request_id, text in self.texts.items():
            if ending:
                self._link.sendall(m.encode([answer(request_id)[1]]))
            else:
                output = RequestOutput(request_id, Delta(text, (5,)))
                self._link.sendall(m.encode([m.StepOutput((), (output,))]))
        if ending:
            self.texts.clear()


def sleep_forever() -> None:
    while True:
        time.sleep(60)


def main() -> None:
    settings = json.loads(os.environ.get("HOLDFAST_TEST_ENGINE", "{}"))
    start = sys.argv[1] if len(sys.argv) > 2 else settings.get("start", "ready")
    link = socket.socket(fileno=int(sys.argv[-1]))
    read_frame(link)
    if start == "dies":
        os._exit(3)
    if start == "loads":
        link.sendall(m.encode([m.Progress("Loading", 1, 2)]))
        sleep_forever()
    if start == "fails":
        link.sendall(m.encode([m.StartupFailed("this cannot be loaded")]))
        return
    streams, ready, tokenizer = Streams(link), READY, None
    if "tokenizer" in settings:
        tokenizer = open_tokenizer(Path(settings["tokenizer"]))
        ready = msgspec.structs.replace(READY, vocab_size=320, max_model_len=4096, num_kv_positions=4096)
    parts = {"dtype": "none", **settings.get("parts", {})}
    fingerprint = [m.FingerprintReady("abc", parts)] if start != "no_fingerprint" else []
    link.sendall(m.encode([ready, *fingerprint]))
    with contextlib.suppress(ConnectionLost):
        while True:
            wait = _TICK_SECONDS if streams.texts else None
            if not select.select([link], [], [], wait)[0]:
                streams.send_more()
                continue
            message = m.decode_to_engine(read_frame(link))
            if isinstance(message, m.Submit) and tokenizer is not None:
                link.sendall(m.encode(scripted(tokenizer, message.request)))
            elif isinstance(message, m.Submit):
                prompt = Prompt(message.request.prompt_ids[0])
                if prompt in (Prompt.STREAM, Prompt.FLOOD):
                    streams.begin(message.request.request_id, prompt)
                else:
                    respond(link, message.request.request_id, prompt)
            elif isinstance(message, m.Abort):
                streams.texts.pop(message.request_id, None)
            elif isinstance(message, m.GetStatus):
                link.sendall(m.encode([status(len(streams.texts))]))
            elif isinstance(message, m.Stop):
                return


if __name__ == "__main__":
    main()
