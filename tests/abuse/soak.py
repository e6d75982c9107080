"""Mixed load of eight tenants behind nginx, two of them hostile, with a deterministic canary every two seconds:

    PYTHONPATH=tests python -m abuse.soak --seconds 1800 --output soak.json

The canary must give one answer, to the bit. Resident memory, open files and threads of the frontend
and the engine process are sampled every five seconds; a leak is growth in the second half.
"""

import argparse
import hashlib
import itertools
import json
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from abuse.attacker import Attacker
from abuse.attacks import ATTACKS, attack_names
from abuse.honest import Honest
from abuse.setup import MAX_MODEL_LEN, attacked_model, attacked_server
from abuse.wire import Target
from support.nginx import behind_nginx
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
class Soak:
    """The load on one server, in threads, until `stop` is set, and what was seen."""

    server: Server
    url: str  # of the proxy
    stop: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.monotonic)
    canaries: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"canary": [], "honest": []})
    statuses: dict[str, Counter[int]] = field(
        default_factory=lambda: {"honest": Counter(), "hostile": Counter()}
    )
    refused: list[str] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)
    attacks: list[tuple[float, str]] = field(default_factory=lambda: [(0.0, "none")])

    def run(self, seconds: float, attack_seconds: float) -> None:
        loops = [self._sing, lambda: self._sample(seconds), lambda: self._attack(attack_seconds)]
        loops += [partial(self._load, at) for at in range(len(HONEST))]
        threads = [threading.Thread(target=loop, daemon=True) for loop in loops]
        for thread in threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        for thread in threads:
            thread.join(60)

    def _send(self, client: Honest, who: str, path: str, body: Any) -> tuple[int, Any]:
        began = time.monotonic()
        status, answer = client.send(path, body)
        self.seconds[who].append(time.monotonic() - began)
        return status, answer

    def _client(self, key: str) -> Honest:
        return Honest(Target(self.url, key), patience=60.0)

    def _sing(self) -> None:
        client = self._client(HONEST[0])
        while not self.stop.is_set():
            status, answer = self._send(client, "canary", "/v1/completions", CANARY)
            self.canaries[digest(answer) if status == 200 else f"status {status}"] += 1
            self.stop.wait(max(0.0, CANARY_SECONDS - self.seconds["canary"][-1]))

    def _load(self, at: int) -> None:
        client, number = self._client(HONEST[at]), at
        while not self.stop.is_set():
            path, body = LOAD[number % len(LOAD)]
            number += 1
            status, answer = self._send(client, "honest", path, body)
            self.statuses["honest"][status] += 1
            if status != 200:
                when = f"{time.monotonic() - self.began:.0f} s, {self.attacks[-1][1]}"
                self.refused.append(f"{when}: {path} {status} {str(answer)[:300]}")
            self.stop.wait(_PAUSE)

    def _attack(self, seconds: float) -> None:
        """Both hostile tenants, one attack after the other, over and over."""
        targets = [
            Target(self.url, key, "tiny", MAX_MODEL_LEN, source=f"127.0.0.{2 + at}")
            for at, key in enumerate(HOSTILE)
        ]
        with Attacker() as attacker:
            for name in itertools.cycle(attack_names()):
                if self.stop.is_set():
                    return
                self.attacks.append((time.monotonic() - self.began, name))
                attacker.begin(name, targets, ATTACKS[name].num_clients[0], seconds + 1)
                self.stop.wait(seconds)
                self.statuses["hostile"].update(attacker.end())

    def _sample(self, seconds: float) -> None:
        processes = {"frontend": self.server.pid, "engine": self.server.engine_pid}
        while not self.stop.wait(min(SAMPLE_SECONDS, seconds / 20)):
            sample = {"seconds": time.monotonic() - self.began}
            for name, pid in processes.items():
                process = psutil.Process(pid)
                sample[f"{name}_rss_mb"] = process.memory_info().rss / 1e6
                sample[f"{name}_fds"] = process.num_fds()
                sample[f"{name}_threads"] = process.num_threads()
            self.samples.append(sample)

    def figures(self) -> dict[str, Any]:
        """The figures; of every series the median of the third and of the last quarter."""
        num = len(self.samples)
        found: dict[str, Any] = {"kv_memory": KV_MEMORY, "canary_answers": dict(self.canaries)}
        for who, seconds in self.seconds.items():
            times = sorted(seconds)
            found[f"{who}_requests"] = len(times)
            for name, at in (("p50", 0.5), ("p99", 0.99), ("worst", 1.0)):
                found[f"{who}_{name}_ms"] = times[min(len(times) - 1, int(len(times) * at))] * 1e3
        for name in sorted(self.samples[0].keys() - {"seconds"}):
            series = [one[name] for one in self.samples]
            third, last = series[num // 2 : 3 * num // 4], series[3 * num // 4 :]
            found[name] = {"third_quarter": median(third), "last_quarter": median(last), "most": max(series)}
        return found | {f"{who}_statuses": dict(statuses) for who, statuses in self.statuses.items()}


def digest(answer: Any) -> str:
    choice = answer["choices"][0]
    song = json.dumps([choice["text"], choice["logprobs"]], sort_keys=True)
    return hashlib.sha256(song.encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m abuse.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--attack-seconds", type=float, default=10.0, help="seconds of each attack")
    parser.add_argument("--output", type=Path, help="a JSON file with every sample")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = attacked_model(folder)
        (folder / "nginx").mkdir()
        with (
            attacked_server(model, "--trusted-proxy", "127.0.0.1", keys=(*HONEST, *HOSTILE)) as server,
            behind_nginx(server.url, folder / "nginx") as url,
        ):
            soak = Soak(server, url)
            soak.run(chosen.seconds, chosen.attack_seconds)
            log = server.text
    found = {**soak.figures(), "tracebacks": log.count("Traceback"), "starts": log.count("Ready after")}
    print(json.dumps(found, indent=1))
    print("\n".join(soak.refused[:20]))
    if chosen.output is not None:
        rest = {"samples": soak.samples, "refused": soak.refused, "attacks": soak.attacks}
        chosen.output.write_text(json.dumps({**found, **rest}, indent=1))


if __name__ == "__main__":
    main()
