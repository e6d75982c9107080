"""An engine process that computes in bfloat16 if it is not the first one with its cache folder."""

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import build
from holdfast.engine.status import ShowProgress
from holdfast.server.ipc.host_main import ignore_signals, serve


def build_engine(config: EngineConfig, progress: ShowProgress) -> Engine:
    try:
        os.close(os.open(Path(os.environ["HOLDFAST_CACHE_DIR"]) / "first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        config = replace(config, dtype="bfloat16")
    return build(config, progress)


if __name__ == "__main__":
    ignore_signals()
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), build_engine))
