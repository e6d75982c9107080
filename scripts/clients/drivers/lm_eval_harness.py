"""lm-eval: local-completions and local-chat-completions, with the task files in `tasks/`.

Every run is made twice, alone and beside other requests. Samples must be equal to the bit: JSON
writes a float so that the same bits come back.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checks import Target

CLIENT = "lm_eval"
TASKS = Path(__file__).parents[1] / "tasks"
COMMAND = Path(sys.executable).with_name("lm-eval")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_STREAMS = 3


def _evaluate(target: Target, model: str, tasks: list[str], *flags: str, **model_args: Any) -> dict[str, Any]:
    """Run lm-eval; the answers of each task, in the order of its documents."""
    route = "chat/completions" if "chat" in model else "completions"
    given = {"model": target.model, "base_url": f"{target.base_url}/{route}", **model_args}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                COMMAND,
                "run",
                "--model",
                model,
                "--model_args",
                *(f"{k}={v}" for k, v in given.items()),
                "--tasks",
                *tasks,
                "--include_path",
                TASKS,
                "--output_path",
                folder,
                "--log_samples",
                *flags,
            ],
            cwd=TASKS,  # the task files name their data relative to it
            env={**os.environ, **OFFLINE, "HF_HOME": folder},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return {task: _samples(Path(folder), task) for task in tasks}


def _samples(folder: Path, task: str) -> list[Any]:
    (file,) = folder.rglob(f"samples_{task}_*.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    return [one["resps"] for one in sorted(samples, key=lambda one: one["doc_id"])]


@contextmanager
def _load(target: Target) -> Iterator[None]:
    """Other requests, in a few streams, until the block ends."""
    stop = threading.Event()
    finished: list[int] = []

    def stream(number: int) -> None:
        while not stop.is_set():
            body = {"model": target.model, "prompt": f"Story {number + len(finished)}:", "max_tokens": 24}
            request = urllib.request.Request(
                f"{target.base_url}/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=120) as response:
                response.read()
            finished.append(number)

    threads = [threading.Thread(target=stream, args=(1000 * number,)) for number in range(_STREAMS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert finished, "the load did not run"


def _alone_and_loaded(target: Target, model: str, tasks: list[str], *flags: str, **model_args: Any) -> Any:
    """The answers, which are the same one by one and four at once beside other requests."""
    alone = _evaluate(target, model, tasks, *flags, **model_args)
    with _load(target):
        loaded = _evaluate(target, model, tasks, *flags, num_concurrent=4, **model_args)
    assert alone == loaded, f"lm-eval's answers differ under load: {alone} and {loaded}"
    return alone


def check_completions(target: Target) -> None:
    """local-completions, tokenizer_backend=remote: loglikelihood, rolling, generate_until, alone = under load"""
    tasks = ["holdfast_capitals", "holdfast_rolling", "holdfast_sums"]
    found = _alone_and_loaded(target, "local-completions", tasks, tokenizer_backend="remote")
    assert len(found["holdfast_capitals"]) == 8 and all(len(one) == 4 for one in found["holdfast_capitals"])


def check_chat_completions(target: Target) -> None:
    """local-chat-completions: generate_until, alone = under load"""
    flags = ["--apply_chat_template", "--system_instruction", "Be brief."]
    _alone_and_loaded(target, "local-chat-completions", ["holdfast_sums"], *flags)


def check_text_requests(target: Target) -> None:
    """local-completions, tokenized_requests=False, batches of 4: the same answers as token ids"""
    settings = {"tokenizer_backend": "remote"}
    ids = _evaluate(target, "local-completions", ["holdfast_capitals"], **settings)
    texts = _evaluate(
        target,
        "local-completions",
        ["holdfast_capitals"],
        *["--batch_size", "4"],
        tokenized_requests=False,
        **settings,
    )
    assert ids == texts
