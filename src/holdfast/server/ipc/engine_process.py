"""The engine's own process: `python -m holdfast.server.ipc.engine_process FD`, with one end of a socket pair as FD.

    reader thread   messages in; requests are checked and prepared here (`desk`)
    main thread     the engine's loop
    writer thread   messages out; encoding and waiting for the socket cost the loop nothing

When the socket closes, the process ends, even while it loads: an engine nobody can ask is of no use.
"""

import contextlib
import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable

from holdfast.engine.builder import ShowProgress, build
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError, ModelError
from holdfast.numerics.settings import pin_threads
from holdfast.server.ipc import frames
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_server import EngineServer
from holdfast.server.telemetry.logs import configure_logging

_log = logging.getLogger("holdfast.engine")
_LEAVING_SECONDS = 5.0

Build = Callable[[EngineConfig, ShowProgress], Engine]


class Outbox:
    """Messages on their way to the front, written by a thread of their own."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._waiting: queue.SimpleQueue[m.FromEngine | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="holdfast-outbox", daemon=True)
        self._thread.start()

    def put(self, message: m.FromEngine) -> None:
        self._waiting.put(message)

    def close(self) -> None:
        """Write what is left, if anybody reads it."""
        self._waiting.put(None)
        self._thread.join(_LEAVING_SECONDS)

    def _write(self) -> None:
        while True:
            batch = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._waiting.get_nowait())
            last = None in batch
            try:
                self._link.sendall(frames.encode([one for one in batch if one is not None]))
            except OSError:
                return  # the front is gone; the reader sees it, too
            except BaseException:  # nobody would be answered any more
                _log.exception("the outbox died")
                os._exit(1)
            if last:
                return


class Inbox:
    """What the front says, read by a thread of its own. Before there is a desk it can only mean: end."""

    def __init__(self, link: socket.socket, decoder: frames.Decoder[m.ToEngine]) -> None:
        self.desk: EngineServer | None = None
        self._link = link
        self._decoder = decoder
        threading.Thread(target=self._read, name="holdfast-inbox", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                message = self._decoder.read(self._link)
                if self.desk is None:
                    os._exit(0)
                self.desk.take(message)
        except frames.ConnectionLost:
            if self.desk is None:
                os._exit(0)
            self.desk.worker.stop()
        except BaseException:  # nobody could ask any more
            _log.exception("the inbox died")
            os._exit(1)


def serve(link: socket.socket, make: Build = build) -> int:
    """Build the engine the first message asks for, then answer until the socket closes or the front says stop."""
    decoder = frames.to_engine()
    try:
        start = decoder.read(link)
    except frames.ConnectionLost:
        return 0
    assert isinstance(start, m.Start)
    configure_logging(start.log_format, start.log_level)
    outbox = Outbox(link)
    inbox = Inbox(link, decoder)
    try:
        engine = make(start.config, lambda what, done, total: outbox.put(m.Progress(what, done, total)))
    except (ConfigError, ModelError) as error:
        outbox.put(m.StartupFailed(str(error)))
        outbox.close()
        return 2
    inbox.desk = desk = EngineServer(engine, outbox.put)
    threading.Thread(target=_name, args=(engine, outbox), name="holdfast-fingerprint", daemon=True).start()
    outbox.put(_ready(start.config, engine))
    gc.collect()
    gc.freeze()  # the engine lives as long as the process: collections need not look at it again
    pin_threads()
    try:
        desk.worker.run()
    finally:
        desk.close()
        outbox.close()
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)  # the front need not wait until every thread has ended
    return 0


def _name(engine: Engine, outbox: Outbox) -> None:
    try:
        fingerprint = engine.fingerprint
        outbox.put(m.FingerprintReady(fingerprint.digest, fingerprint.plain_parts()))
    except BaseException:  # every answer would wait for it
        _log.exception("the fingerprint cannot be had")
        os._exit(1)


def _ready(config: EngineConfig, engine: Engine) -> m.Ready:
    pool = engine.scheduler.pool
    return m.Ready(
        vocab_size=engine.limits.vocab_size,
        max_model_len=engine.limits.max_model_len,
        max_num_seqs=engine.scheduler.config.max_num_seqs,
        num_kv_positions=pool.num_pages * pool.page_size,
        determinism=config.determinism,
        refusal=engine.limits.refusal,
        certificate=None if engine.certificate is None else engine.certificate.as_dict(),
        chunk=engine.scheduler.config.chunk_len,
    )


def leave_signals_to_the_front() -> None:
    """A terminal or a supervisor may signal both processes. The front drains, and then says stop or closes the socket."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def main() -> None:
    leave_signals_to_the_front()
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
