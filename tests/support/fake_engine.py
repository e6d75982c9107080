"""A program that speaks like an engine process, without a model: `fake_engine.py START FD`. It starts at once.

START says how it begins: ready, unfit, dies, loads (for ever). A request's first token says what becomes of it (`Prompt`).
"""

import contextlib
import os
import signal
import socket
import sys
import time
from enum import IntEnum

from holdfast.core.result import Stats
from holdfast.server import frames
from holdfast.server import messages as m
from holdfast.server.engine_status import EngineStatus

SEED = 7
READY = m.Ready(
    vocab_size=100,
    max_model_len=100,
    max_num_seqs=4,
    num_kv_positions=100,
    determinism="off",
    refusal=None,
    certificate=None,
)


class Prompt(IntEnum):
    """The first token of a prompt, and what it makes the engine do."""

    ANSWER = 1
    ANSWER_TWICE = 2  # every frame comes twice
    REFUSE = 3
    GARBAGE = 4  # a frame of bytes that are no message
    WRONG_TYPE = 5  # a message with a field of another type
    TOO_LONG = 6  # a length no frame has; then it goes on living
    CUT_OFF = 7  # half a frame, then it ends
    HANG_UP = 8  # closes the socket, but does not end
    DIE = 9
    SILENCE = 10
    UNASKED_STATUS = 11


def answer(number: int) -> list[m.FromEngine]:
    """All that is said of a request that is answered with "yes"."""
    piece = m.Piece(number, 0, "yes", (5,), None, "stop")
    outcome = m.Outcome(number, SEED, "none", Stats(), None, None, None)
    return [m.Accepted(number, SEED), m.News((m.Begun(number, 0.0),), (piece,), (outcome,))]


def respond(link: socket.socket, number: int, prompt: Prompt) -> None:
    said = frames.encode(answer(number))
    if prompt is Prompt.ANSWER:
        link.sendall(said)
    elif prompt is Prompt.ANSWER_TWICE:
        link.sendall(b"".join(frames.encode([one, one]) for one in answer(number)))
    elif prompt is Prompt.REFUSE:
        link.sendall(frames.encode([m.Refused(number, "PromptTooLong", "too long")]))
    elif prompt is Prompt.GARBAGE:
        link.sendall((5).to_bytes(4, "little") + b"\xc1bad\xff")
    elif prompt is Prompt.WRONG_TYPE:
        link.sendall(frames.encode([["Accepted", "a number", 1]]))
    elif prompt is Prompt.TOO_LONG:
        link.sendall(b"\xff\xff\xff\xff" + said)
        live_on()
    elif prompt is Prompt.CUT_OFF:
        link.sendall(said[: len(said) // 2])
        os._exit(0)
    elif prompt is Prompt.HANG_UP:
        link.close()
        live_on()
    elif prompt is Prompt.DIE:
        os.kill(os.getpid(), signal.SIGKILL)
    elif prompt is Prompt.UNASKED_STATUS:
        link.sendall(frames.encode([STATUS]))


STATUS = m.Status(EngineStatus(running=0, waiting=0, pages_used=0, pages_cached=0, num_pages=1))


def live_on() -> None:
    while True:
        time.sleep(60)


def main() -> None:
    start, link = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    decoder = frames.to_engine()
    decoder.read(link)
    if start == "dies":
        os._exit(3)
    if start == "loads":
        link.sendall(frames.encode([m.Progress("Loading", 1, 2)]))
        live_on()
    if start == "unfit":
        link.sendall(frames.encode([m.Unfit("this cannot be loaded")]))
        return
    link.sendall(frames.encode([READY, m.Named("abc", {"dtype": "none"})]))
    with contextlib.suppress(frames.ConnectionLost):
        while not isinstance(message := decoder.read(link), m.Stop):
            if isinstance(message, m.Submit):
                respond(link, message.number, Prompt(message.prompt_ids[0]))
            elif isinstance(message, m.AskStatus):
                link.sendall(frames.encode([STATUS]))


if __name__ == "__main__":
    main()
