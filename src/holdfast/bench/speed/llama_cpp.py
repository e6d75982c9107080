"""llama.cpp on the same GGUF file, through its own programs.

`llama-batched-bench` measures, one process for each batch; it reads the file anew each time, outside
of the times it prints. `llama-completion` is the command whose first token is timed. The script
docs/build-llama-cpp.sh builds both from a checkout of llama.cpp.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast.errors import ConfigError, EngineStopped

PeerName = Literal["hugging-face", "llama.cpp"]  # what Holdfast is measured against

_BENCH, _COMPLETION = "llama-batched-bench", "llama-completion"
_CONTEXT = 1024  # of the command; the whole context of a model would be allocated at once
_MAX_BATCH = 512  # tokens in one pass of either engine


@dataclass(frozen=True)
class LlamaCpp:
    """The programs of one build, and the file they run."""

    bench: Path
    completion: Path
    model: Path
    num_threads: int

    @property
    def version(self) -> str:
        """As the program says it, such as "8123 (b21e4de)"."""
        done = subprocess.run([self.bench, "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"version: (.+)", done.stdout + done.stderr)
        return found[1].strip() if found else "unknown"

    @property
    def command(self) -> list[str]:
        """A command that prints one answer and nothing else."""
        options = [
            "-c",
            _CONTEXT,
            "-n",
            8,
            "-t",
            self.num_threads,
            "--temp",
            0,
            "-no-cnv",
            "--no-display-prompt",
        ]
        prompt = ["-p", "Why is the sea salt?"]
        return [str(self.completion), "-m", str(self.model), *map(str, options), *prompt]

    def seconds(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """The time of the prompts, or, with more than one token, of the tokens after the first alone.

        Only the number and the length of the prompts matter: the program makes its own.
        """
        found = self._measure(len(prompts), len(prompts[0]), max(num_tokens - 1, 1))
        return found["t_pp"] if num_tokens == 1 else found["t_tg"]

    def _measure(self, streams: int, prompt_len: int, decoded: int) -> dict[str, float]:
        context = max(_MAX_BATCH, streams * (prompt_len + decoded))  # the program warms up with 16 tokens
        options = {"-npp": prompt_len, "-ntg": decoded, "-npl": streams, "-c": context}
        options |= {"-b": max(_MAX_BATCH, streams * prompt_len), "-ub": _MAX_BATCH}
        options |= {"-t": self.num_threads, "-tb": self.num_threads}
        words = [str(word) for option in options.items() for word in option]
        command = [str(self.bench), "-m", str(self.model), *words, "--output-format", "jsonl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not lines:
            raise EngineStopped(f"{_BENCH} failed with {done.returncode}: {done.stderr.strip()[-600:]}")
        found: dict[str, float] = json.loads(lines[-1])
        return found


def find_llama_cpp(folder: Path | None, model: Path, num_threads: int) -> LlamaCpp:
    """The programs in this folder, or those on the search path. Raises ConfigError without them."""
    if model.suffix != ".gguf":
        raise ConfigError(f"llama.cpp reads GGUF files; {model} is none. Give a .gguf file as MODEL")
    where = None if folder is None else str(folder)
    found = [shutil.which(name, path=where) for name in (_BENCH, _COMPLETION)]
    if None in found:
        missing = [name for name, path in zip((_BENCH, _COMPLETION), found, strict=True) if path is None]
        raise ConfigError(
            f"{' and '.join(missing)} not found {'on the search path' if folder is None else f'in {folder}'}; build "
            "llama.cpp with docs/build-llama-cpp.sh and name its folder with --peer-dir"
        )
    bench, completion = (Path(path).absolute() for path in found if path is not None)
    return LlamaCpp(bench, completion, model, num_threads)
