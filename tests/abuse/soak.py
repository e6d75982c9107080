"""Mixed load of eight tenants, two of them hostile, with a deterministic canary every two seconds:

    PYTHONPATH=tests python -m abuse.soak --seconds 1800 --output soak.json

The canary must give one answer, to the bit. Resident memory, open files and threads of the frontend
and the engine process are sampled every five seconds; a leak is growth in the second half.
"""

import argparse
import hashlib
import json
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from abuse.attacker import Attacker
from abuse.attacks import ATTACKS, attack_names
from abuse.honest import Honest
from abuse.setup import MAX_MODEL_LEN, attacked_model, attacked_server
from abuse.wire import Target
from support.serving import Server

HONEST = tuple(f"key-of-honest-tenant-{at}" for at in range(6))
HOSTILE = tuple(f"key-of-hostile-tenant-{at}" for at in range(2))
KV_MEMORY = "64MiB"
CANARY_SECONDS, SAMPLE_SECONDS = 2.0, 5.0
CANARY: dict[str, Any] = {
    "prompt": "the canary sings",
    "max_tokens": 24,
    "temperature": 0.9,
    "seed": 11,
    "logprobs": 5,
    "deterministic": True,
    "ignore_eos": True,
}
_PAUSE = 0.25  # seconds between two requests of an honest tenant
_USER = [{"role": "user", "content": "the dog"}]
LOAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "the quick brown", "max_tokens": 32, "ignore_eos": True}),
    ("/v1/chat/completions", {"messages": _USER, "max_tokens": 16, "temperature": 1}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 16, "guided_regex": "(yes|no)"}),
    ("/v1/embeddings", {"input": ["the lazy dog", "the fox"]}),
    ("/tokenize", {"prompt": "the lazy dog " * 50}),
    ("/v1/score", {"prompt": "the lazy", "completion": " dog"}),
    ("/v1/completions", {"prompt": "the lazy dog " * 60, "max_tokens": 8, "deterministic": True, "seed": 3}),
    ("/v1/messages", {"model": "tiny", "messages": _USER, "max_tokens": 16}),
    ("/v1/responses", {"model": "tiny", "input": "the fox", "max_output_tokens": 16}),
    ("/v1/completions", {"prompt": "the", "n": 4, "max_tokens": 12, "logprobs": 3, "temperature": 1}),
)


@dataclass
class Record:
    """What a soak saw. Shared by its threads."""

    canaries: Counter[str] = field(default_factory=Counter)
    canary_seconds: list[float] = field(default_factory=list)
    honest_seconds: list[float] = field(default_factory=list)
    honest_statuses: Counter[int] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    hostile_statuses: Counter[int] = field(default_factory=Counter)
    samples: list[dict[str, float]] = field(default_factory=list)
    attacks: list[tuple[float, str]] = field(default_factory=list)


class Soak:
    """The load on one server, in threads, until `stop` is set."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.record = Record()
        self.stop = threading.Event()
        self.began = time.monotonic()
        self.attack = "none"

    def run(self, seconds: float, attack_seconds: float) -> None:
        loops = [self._sing, lambda: self._sample(seconds), lambda: self._attack(attack_seconds)]
        loops += [lambda at=at: self._load(at) for at in range(len(HONEST))]  # type: ignore[misc]
        threads = [threading.Thread(target=loop, daemon=True) for loop in loops]
        for thread in threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        for thread in threads:
            thread.join(60)

    def _client(self, key: str) -> Honest:
        return Honest(Target(self.server.url, key), patience=60.0)

    def _sing(self) -> None:
        client = self._client(HONEST[0])
        while not self.stop.is_set():
            began = time.monotonic()
            status, answer = client.send("/v1/completions", CANARY)
            self.record.canary_seconds.append(time.monotonic() - began)
            song = digest(answer) if status == 200 else f"status {status}"
            self.record.canaries[song] += 1
            self.stop.wait(max(0.0, CANARY_SECONDS - (time.monotonic() - began)))

    def _load(self, at: int) -> None:
        client, number = self._client(HONEST[at]), at
        while not self.stop.is_set():
            path, body = LOAD[number % len(LOAD)]
            number += 1
            began = time.monotonic()
            status, answer = client.send(path, body)
            self.record.honest_seconds.append(time.monotonic() - began)
            self.record.honest_statuses[status] += 1
            if status != 200:
                when = time.monotonic() - self.began
                self.record.refused.append(
                    f"{when:.0f} s, {self.attack}: {path} {status} {str(answer)[:300]}"
                )
            self.stop.wait(_PAUSE)

    def _attack(self, seconds: float) -> None:
        """Both hostile tenants, one attack after the other, over and over."""
        targets = [Target(self.server.url, key, "tiny", MAX_MODEL_LEN) for key in HOSTILE]
        with Attacker() as attacker:
            while not self.stop.is_set():
                for name in attack_names():
                    self.attack = name
                    self.record.attacks.append((time.monotonic() - self.began, name))
                    attacker.begin(name, targets, ATTACKS[name].num_clients[0], seconds + 1)
                    self.stop.wait(seconds)
                    self.record.hostile_statuses.update(attacker.end())
                    if self.stop.is_set():
                        break

    def _sample(self, seconds: float) -> None:
        frontend = psutil.Process(self.server.pid)
        engine = psutil.Process(self.server.engine_pid)
        while not self.stop.wait(min(SAMPLE_SECONDS, seconds / 20)):
            sample = {
                "seconds": time.monotonic() - self.began,
                "children": len(frontend.children(recursive=True)),
            }
            for name, process in (("frontend", frontend), ("engine", engine)):
                sample[f"{name}_rss_mb"] = process.memory_info().rss / 1e6
                sample[f"{name}_fds"] = process.num_fds()
                sample[f"{name}_threads"] = process.num_threads()
            self.record.samples.append(sample)


def digest(answer: Any) -> str:
    choice = answer["choices"][0]
    song = json.dumps([choice["text"], choice["logprobs"]], sort_keys=True)
    return hashlib.sha256(song.encode()).hexdigest()[:16]


def summary(record: Record) -> dict[str, Any]:
    """The figures; of every series the median of the third and of the last quarter."""
    num = len(record.samples)
    series = {
        name: {
            "third_quarter": median(one[name] for one in record.samples[num // 2 : 3 * num // 4]),
            "last_quarter": median(one[name] for one in record.samples[3 * num // 4 :]),
            "most": max(one[name] for one in record.samples),
        }
        for name in record.samples[0]
        if name != "seconds"
    }
    times = sorted(record.honest_seconds)
    return {
        "kv_memory": KV_MEMORY,
        "canary_answers": dict(record.canaries),
        "canary_p50_ms": median(record.canary_seconds) * 1e3,
        "canary_worst_ms": max(record.canary_seconds) * 1e3,
        "honest_requests": len(times),
        "honest_statuses": dict(record.honest_statuses),
        "honest_p50_ms": median(times) * 1e3,
        "honest_p99_ms": times[int(len(times) * 0.99)] * 1e3,
        "hostile_statuses": dict(record.hostile_statuses),
        "series": series,
    }


def soak(server: Server, seconds: float, attack_seconds: float) -> Record:
    running = Soak(server)
    running.run(seconds, attack_seconds)
    return running.record


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m abuse.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--attack-seconds", type=float, default=10.0, help="seconds of each attack")
    parser.add_argument("--output", type=Path, help="a JSON file with every sample")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(attacked_server(attacked_model(folder), keys=(*HONEST, *HOSTILE)))
        record = soak(server, chosen.seconds, chosen.attack_seconds)
        log = server.text
    found = {**summary(record), "tracebacks": log.count("Traceback"), "starts": log.count("Ready after")}
    print(json.dumps(found, indent=1))
    print("\n".join(record.refused[:20]))
    if chosen.output is not None:
        rest = {"samples": record.samples, "refused": record.refused, "attacks": record.attacks}
        chosen.output.write_text(json.dumps({**found, **rest}, indent=1))


if __name__ == "__main__":
    main()
