"""Renders one chat template in a process of its own.

A template comes with a model file and is an untrusted program. jinja2's sandbox keeps it away from
Python's internals, but not from looping for ever or from building a string larger than memory.
There are too many ways to do either (operators, filters, format widths, macros that call
themselves) to intercept each of them in this process, and a single long call into C cannot be
interrupted from a thread. So each template has a worker process (`template_worker`): the kernel
bounds its memory and CPU time, this process its wall time. A rendering that exceeds a bound is
killed with the process, and the next one starts a fresh process.

A process takes about 0.1 s to start, which `warm` moves beside the loading of weights, and a
rendering well under a millisecond.
"""

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from holdfast.core.cancel_token import CancelToken
from holdfast.errors import TemplateError
from holdfast.sandbox.supervisor import SetupLost, SetupRefused, WorkerLost, WorkerSupervisor

_NUM_WORKERS = 2  # the second is started when the first is busy
_MAX_SOURCE_CHARS = 1 << 20
_BYTES_PER_CHAR = 12  # JSON writes a character as at most two escapes of six


@dataclass(frozen=True)
class TemplateLimits:
    """What one rendering may use. `max_chars` is added to the size of the messages themselves."""

    cpu_seconds: float = 2.0
    wall_seconds: float = 5.0
    memory_bytes: int = 512 << 20
    max_chars: int = 4 << 20


class TemplateSandbox(WorkerSupervisor):
    """Renders one template, from any thread, two renderings at a time."""

    def __init__(self, source: str, limits: TemplateLimits | None = None) -> None:
        self._limits = limits or TemplateLimits()
        setup = partial(_setup, source, self._limits)
        super().__init__("template_worker.py", ["jinja2", "markupsafe"], setup, _NUM_WORKERS)
        self._refusal: str | None = None  # why this template can never be rendered
        if len(source) > _MAX_SOURCE_CHARS:
            self._refusal = f"it is larger than a template may be ({_MAX_SOURCE_CHARS} characters)"

    def warm(self) -> None:
        if self._refusal is None:
            super().warm()

    def render(self, variables: Mapping[str, object], *, date: str, token: CancelToken | None = None) -> str:
        """Render the template with plain JSON values. `strftime_now` gives `date`. Raises `Cancelled`
        soon after the token is cancelled."""
        if self._refusal is not None:
            _fail(self._refusal)
        limits = self._limits
        max_chars = limits.max_chars + len(json.dumps(variables))
        request = {
            "date": date,
            "cpu_seconds": limits.cpu_seconds,
            "variables": variables,
            "max_chars": max_chars,
        }
        try:
            answer = self.request(
                request,
                seconds=limits.wall_seconds,
                max_bytes=max_chars * _BYTES_PER_CHAR + 4096,
                token=token,
            )
        except SetupRefused as refused:
            self._refusal = str(refused)
            _fail(self._refusal)
        except WorkerLost as lost:
            reason = str(lost)
            if lost.signal == signal.SIGPROF:
                reason = f"it computed for more than {limits.cpu_seconds:g} seconds"
                if isinstance(lost, SetupLost):
                    self._refusal = reason
            _fail(reason)
        except ImportError as error:
            _fail(f"{error}, which chat templates need")
        except OSError as error:
            _fail(f"its process cannot be started: {error.strerror or error}")
        if "error" in answer:
            _fail(answer["error"])
        text: str = answer["text"]
        return text


def _setup(source: str, limits: TemplateLimits) -> dict[str, Any]:
    kernel_limits = {
        "RLIMIT_AS": limits.memory_bytes,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_CORE": 0,
        "RLIMIT_NPROC": 0,
        "RLIMIT_NOFILE": 16,
    }
    return {"source": source, "limits": kernel_limits, "cpu_seconds": limits.cpu_seconds}


def _fail(reason: str) -> NoReturn:
    raise TemplateError(f"the chat template failed: {reason}")
