"""The engine process: `python -m holdfast.server.ipc.host_main FD`, FD being a socket.

    reader thread   reads messages, checks and prepares requests (`EngineHost.handle`)
    main thread     the engine's loop
    writer thread   encodes and writes messages, so that the loop waits for neither

When the socket closes, the process ends, even while it loads.
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

from holdfast.core.framing import ConnectionLost, read_frame
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import build
from holdfast.engine.status import ShowProgress
from holdfast.errors import ConfigError, EngineStopped, ModelError
from holdfast.receipts.machine import library_version
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.host import EngineHost
from holdfast.server.ipc.pass_record import PassRecord
from holdfast.server.telemetry.logs import configure_logging

_log = logging.getLogger("holdfast.engine")
_FLUSH_SECONDS = 5.0
# Seconds after which another thread gives the GIL back to the engine's loop. That asks for it after each kernel.
SWITCH_SECONDS = 0.0005

Build = Callable[[EngineConfig, ShowProgress], Engine]


class FrameWriter:
    """Sends messages to the frontend from a thread of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._queue: queue.SimpleQueue[m.FromEngine | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="holdfast-writer", daemon=True)
        self._thread.start()

    def send(self, message: m.FromEngine) -> None:
        self._queue.put(message)

    def close(self) -> None:
        """Write what is queued, but do not wait long for a frontend that does not read."""
        self._queue.put(None)
        self._thread.join(_FLUSH_SECONDS)

    def _write(self) -> None:
        while True:
            batch = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._queue.get_nowait())
            is_last = None in batch
            try:
                self._connection.sendall(m.encode([one for one in batch if one is not None]))
            except OSError:
                return  # the frontend is gone; the reader sees it, too
            except BaseException:  # no request could be answered any more
                _log.exception("the writer thread died")
                os._exit(1)
            if is_last:
                return


class FrameReader:
    """Reads the frontend's messages in a thread of its own. Until there is a host, any of them means: end."""

    def __init__(self, connection: socket.socket) -> None:
        self.host: EngineHost | None = None
        self._connection = connection
        threading.Thread(target=self._read, name="holdfast-reader", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                message = m.decode_to_engine(read_frame(self._connection))
                if self.host is None:
                    os._exit(0)
                self.host.handle(message)
        except ConnectionLost:
            if self.host is None:
                os._exit(0)
            self.host.loop.stop()
        except BaseException:  # no request could arrive any more
            _log.exception("the reader thread died")
            os._exit(1)


def serve(connection: socket.socket, make: Build = build) -> int:
    """Build the engine of the first message, then serve it until the socket closes or `Stop`.

    Returns the exit code.
    """
    try:
        start = m.decode_to_engine(read_frame(connection))
    except ConnectionLost:
        return 0
    assert isinstance(start, m.Start)
    configure_logging(start.log_format, start.log_level, model=start.model)
    writer = FrameWriter(connection)
    reader = FrameReader(connection)
    try:
        engine = make(start.config, lambda stage, done, total: writer.send(m.Progress(stage, done, total)))
    except (ConfigError, ModelError) as error:
        writer.send(m.StartupFailed(str(error)))
        writer.close()
        return 2
    reader.host = host = EngineHost(engine, writer.send, _open_record(start.pass_record))
    threading.Thread(
        target=_send_fingerprint, args=(engine, writer), name="holdfast-fingerprint", daemon=True
    ).start()
    writer.send(host.ready)
    gc.collect()
    gc.freeze()  # the engine lives as long as the process: the collector need not visit it again
    try:
        host.loop.run()
    finally:
        host.close()
        writer.close()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # the frontend need not wait until every thread has ended
    return 0


def _open_record(descriptor: int) -> PassRecord | None:
    if descriptor < 0:
        return None
    record = PassRecord(descriptor)
    os.close(descriptor)
    return record


def _send_fingerprint(engine: Engine, writer: FrameWriter) -> None:
    try:
        fingerprint = engine.fingerprint
    except EngineStopped:
        return
    except BaseException:  # every response would wait for it
        _log.exception("the fingerprint could not be made")
        os._exit(1)
    writer.send(m.FingerprintReady(fingerprint.digest, fingerprint.parts, library_version("llguidance")))


def ignore_signals() -> None:
    """Leave signals to the frontend, which drains and then sends `Stop` or closes the socket.

    A terminal may signal both processes.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def main() -> None:
    ignore_signals()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # our threads run it
    sys.setswitchinterval(SWITCH_SECONDS)
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
