"""Scripts that use an engine and end in each way that a script ends, several at a time."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.models.dummy import tiny_fields

# How a script ends, and the status that Python gives it.
ENDINGS = {
    "closed": 0,
    "not_closed": 0,
    "sys_exit": 3,
    "exception": 1,
    "interrupt": -signal.SIGINT,
    "open_stream": 0,
    "async": 0,
}
READY = b"ready\n"
_LONGEST_DELAY = 0.5  # seconds until an interrupt, from the first answer on

_PROGRAM = """
import asyncio, json, signal, sys
from holdfast import LLM, AsyncLLM, SamplingParams

signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
ending, options = sys.argv[1], json.loads(sys.argv[2])
short = SamplingParams(max_tokens=8, temperature=0.8, top_p=0.95, ignore_eos=True, deterministic=True)
long = SamplingParams(max_tokens=400, temperature=0.8, top_p=0.95, ignore_eos=True, deterministic=True)

async def begin():
    llm = AsyncLLM(**options)
    await llm.generate([5, 6, 7], short)
    stream = llm.generate([8, 9], long)
    await anext(stream)
    return llm, stream

if ending == "async":
    kept = asyncio.run(begin())
else:
    llm = LLM(**options)
    results = llm.generate([[5, 6, 7], [8, 9]] * 4, short)
    assert all(result.error is None and len(result.token_ids) == 8 for result in results), results
    print("ready", flush=True)
    if ending == "closed":
        llm.close()
    elif ending == "sys_exit":
        sys.exit(3)
    elif ending == "exception":
        raise ValueError("an error of the script")
    elif ending == "interrupt":
        while True:
            llm.generate([[5, 6, 7], [8, 9]] * 4, long)
    elif ending == "open_stream":
        stream = llm.stream([5, 6, 7], long)
        next(stream)
"""


@dataclass(frozen=True)
class Ended:
    """How a script ended. status is None if it did not end in time."""

    ending: str
    status: int | None
    errors: str

    @property
    def is_right(self) -> bool:
        return self.status == ENDINGS[self.ending]


def model_folder(folder: Path, **changes: Any) -> Path:
    """The shape of a tiny model, for random weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny_fields(**changes)))
    return folder


def run_scripts(
    endings: Sequence[str],
    options: Mapping[str, Any],
    *,
    at_once: int,
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> list[Ended]:
    """Run a script for each ending, with these options of `LLM`. seconds: that one may take."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda ending: _run(ending, options, seconds, environment or {}), endings))


def _run(ending: str, options: Mapping[str, Any], seconds: float, environment: Mapping[str, str]) -> Ended:
    script = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, ending, json.dumps({"load_format": "dummy", **options})],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        if ending == "interrupt":
            assert script.stdout is not None
            if script.stdout.readline() == READY:
                time.sleep(random.uniform(0, _LONGEST_DELAY))
                script.send_signal(signal.SIGINT)
        _, errors = script.communicate(timeout=seconds)
        return Ended(ending, script.returncode, errors.decode(errors="replace"))
    except subprocess.TimeoutExpired:
        script.kill()
        _, errors = script.communicate()
        return Ended(ending, None, errors.decode(errors="replace"))
