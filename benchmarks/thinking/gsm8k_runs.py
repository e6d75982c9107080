"""Nine runs on GSM8K under equal time: no chain of thought, a chain in words, thinking; three seeds each.

    python benchmarks/thinking/gsm8k_runs.py train --data DIR --backbone MODEL --out RUNS --minutes 8
    python benchmarks/thinking/gsm8k_runs.py eval --data DIR --out RUNS

DIR holds train.jsonl and test.jsonl. `train` starts the runs at the same time, so that each has the same share of
the GPU for the same minutes, start-up included. `eval` answers the test file with the engine, and times single
questions in turns, one run of each mode. Both skip what is there already. `--runs none-0,chain-0` names some of
the runs. Results: RUNS/results.json, with the curves; logs: RUNS/NAME/log.txt. The task is `gsm8k.py`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from gsm8k import CHUNK, Gsm8k, Problem, read_problems, value_of

from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.llm.llm import LLM
from holdfast.worker.device import choose_device
from holdfast_thinking.run.loop import StepMetrics, start_run, train, write_model
from holdfast_thinking.settings import AnswerForm, LossWeights, TrainingSettings

FORMS: dict[str, AnswerForm] = {"none": "none", "chain": "cot", "thinking": "thinking"}
NAMES = tuple(f"{mode}-{seed}" for mode in FORMS for seed in range(3))
_RATES = {"none": 5e-5, "chain": 3e-5, "thinking": 1.5e-4}  # what T reads is new to the backbone
_WARM_UP = {"none": 40, "chain": 40, "thinking": 100}  # steps
_MOST_TOKENS = {"none": 16, "chain": 400, "thinking": 16}
_TIMED, _UNTIMED = 40, 5  # questions
_SHOWN = 20  # answers in the results
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("train", "eval", "train-one", "eval-one", "time"))
    parser.add_argument("--data", type=Path, required=True, help="folder with train.jsonl and test.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--backbone", help="a folder or .gguf file; to train")
    parser.add_argument("--runs", default=",".join(NAMES), help="names, separated by commas")
    parser.add_argument("--minutes", type=float, default=8.0, help="of a run, start-up included")
    parser.add_argument("--steps", type=int, help="train for so many steps, however long they take")
    parser.add_argument("--batch", type=int, default=24, help="texts of a step")
    parser.add_argument("--passes", type=int, default=2, help="of a step; more need less memory")
    parser.add_argument("--rate", type=float, help="maximum learning rate, instead of the mode's")
    parser.add_argument("--count", type=int, help="test questions; default: all")
    parser.add_argument("--at-once", type=int, help="processes; default: 9 to train, 3 to evaluate")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    o = parser.parse_args()
    names: list[str] = o.runs.split(",")
    if unknown := set(names) - set(NAMES):
        parser.error(f"there is no run {unknown.pop()}; expected {', '.join(NAMES)}")
    os.environ["GSM8K"] = str(o.data.resolve())
    if o.what == "train":
        _run_each("train-one", _missing(o, names, "run.json"), o, o.at_once or 9)
    elif o.what == "eval":
        trained = [name for name in names if (o.out / name / "run.json").exists()]
        _run_each("eval-one", _missing(o, trained, "test.json"), o, o.at_once or 3)
        _run_each("time", [",".join({name.split("-")[0]: name for name in reversed(trained)}.values())], o, 1)
        _join(o.out, trained)
    elif o.what == "train-one":
        train_one(names[0], o)
    elif o.what == "eval-one":
        _write(o.out / names[0] / "test.json", evaluate(names[0], o))
    else:
        _write(o.out / "times.json", time_answers(names, o))


def _missing(o: Namespace, names: Sequence[str], file: str) -> list[str]:
    return [name for name in names if not (o.out / name / file).exists()]


def _run_each(what: str, names: Sequence[str], o: Namespace, at_once: int) -> None:
    """Run this script once for each name, some at a time."""
    own = {"what", "runs", "at_once"}
    options = [f"--{key}={value}" for key, value in vars(o).items() if key not in own and value is not None]
    environment = {**os.environ, "OMP_NUM_THREADS": str(-(-(os.cpu_count() or 1) // at_once))}
    if what == "train-one":
        environment |= {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
    waiting, running = list(names), dict[str, subprocess.Popen[bytes]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            name = waiting.pop(0)
            folder = o.out / name.split(",")[0]
            folder.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, __file__, what, *options, f"--runs={name}"]
            with (folder / "log.txt").open("ab") as log:
                running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        time.sleep(0.2)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            print(f"{what} {name}: exit status {running.pop(name).returncode}", flush=True)


def train_one(name: str, o: Namespace) -> None:
    """Train a run and write its model and its curve."""
    started, curve = time.monotonic(), list[Row]()

    def report(moment: StepMetrics) -> None:
        share = None if moment.accuracy is None else fmean(moment.accuracy.values())
        seconds = round(time.monotonic() - started, 1)
        curve.append({"seconds": seconds, **asdict(moment), "accuracy": share})
        print(json.dumps(curve[-1]), flush=True)

    settings = _settings(name, o)
    run = start_run(settings, torch.device(str(choose_device(o.device))))
    print(f"start-up: {time.monotonic() - started:.1f} s", flush=True)
    train(run, report=report)
    seconds = time.monotonic() - started
    memory = torch.cuda.max_memory_allocated() if run.device.type == "cuda" else 0
    write_model(run, o.out / name)
    row = {"name": name, "steps": run.step, "texts": run.step * settings.batch, "seconds": round(seconds, 1)}
    row |= {"rate": settings.learning_rate, "memory_gb": memory / 1e9, "curve": curve}
    _write(o.out / name / "run.json", row)


def _settings(name: str, o: Namespace) -> TrainingSettings:
    mode, _, seed = name.partition("-")
    return TrainingSettings(
        tasks=(f"{Path(__file__).with_name('gsm8k.py')}:Gsm8k",),
        form=FORMS[mode],
        backbone=o.backbone,
        window=None,
        chunk=CHUNK,
        max_thought=12,
        carry=True,
        while_answering=False,
        context=1024,
        steps=o.steps or 100_000,
        minutes=None if o.steps else o.minutes,
        batch=o.batch,
        accumulate=min(o.batch, o.passes),
        learning_rate=o.rate or _RATES[mode],
        block_rate=4.0,
        warmup=_WARM_UP[mode],
        weight_decay=0.01,
        weights=LossWeights(thought=2.0),
        seed=int(seed),
        workers=0,
        eval_every=200,
        eval_texts=64,
        dtype="bfloat16",
    )


class Examinee:
    """A trained run in the engine, with the test questions in its form."""

    def __init__(self, name: str, o: Namespace, count: int | None) -> None:
        self.mode = name.partition("-")[0]
        folder = o.out / name
        task = Gsm8k(TrainingSettings(form=FORMS[self.mode], backbone=str(folder), window=None))
        self.problems = read_problems(o.data / "test.jsonl")[:count]
        self.prompts = [task.encode(task.write(each).prompt) for each in self.problems]
        self.llm = LLM(str(folder), device=o.device, max_model_len=1024, prefix_cache=False, kv_memory="4GiB")

    def answer(self, prompts: Sequence[list[int]], **more: Any) -> list[Result]:
        params = SamplingParams(
            max_tokens=_MOST_TOKENS[self.mode], temperature=0.0, deterministic=True, **more
        )
        return self.llm.generate(prompts, params, use_tqdm=False, want_receipts=False)

    def is_right(self, problem: Problem, result: Result) -> bool:
        """Compare the number after the last "So" of a chain, or of the answer."""
        said = result.text.rpartition("So ")[2] if self.mode == "chain" else result.text
        return result.finish_reason == "stop" and value_of(said) == value_of(problem.final)


def evaluate(name: str, o: Namespace) -> Row:
    """Answer the test questions; with a thinking model once more without its thoughts."""
    model = Examinee(name, o, o.count)
    started = time.perf_counter()
    results = model.answer(model.prompts)
    seconds = time.perf_counter() - started
    pairs = list(zip(model.problems, results, strict=True))
    row: Row = {"count": len(pairs), "right": sum(model.is_right(*each) for each in pairs)}
    row |= {"seconds": seconds, **_cost(results)}
    row["cut_off"] = sum(each.finish_reason != "stop" for each in results)
    row["shown"] = [
        {"question": problem.question, "gold": problem.final, "said": result.text, "thoughts": _said(result)}
        for problem, result in pairs[:_SHOWN]
    ]
    if model.mode == "thinking":
        row["answer_is_last_thought"] = sum(_said(each)[-1:] == [each.text.strip()] for each in results)
        silent = zip(model.problems, model.answer(model.prompts, think=False), strict=True)
        row["right_without_thoughts"] = sum(model.is_right(*each) for each in silent)
    return row


def _cost(results: Sequence[Result]) -> Row:
    thoughts = [[thought for thought in each.thoughts if thought.token_ids] for each in results]
    return {
        "answer_tokens": fmean(len(each.token_ids) for each in results),
        "thoughts": fmean(map(len, thoughts)),
        "thought_tokens": fmean(sum(len(one.token_ids) for one in each) for each in thoughts),
        "prefill_passes": fmean(each.stats.prefill_passes for each in results),
    }


def _said(result: Result) -> list[str]:
    return [thought.text for thought in result.thoughts if thought.token_ids]


def time_answers(names: Sequence[str], o: Namespace) -> list[Row]:
    """Time single questions, the models in turns: milliseconds from the question to the end of the answer."""
    count = min(o.count or 1 << 30, _TIMED + _UNTIMED)
    models = [Examinee(name, o, count) for name in names]
    times: list[list[float]] = [[] for _ in models]
    results: list[list[Result]] = [[] for _ in models]
    for number in range(len(models[0].prompts)):
        for model, own, said in zip(models, times, results, strict=True):
            started = time.perf_counter()
            said += model.answer([model.prompts[number]])
            own.append(1000 * (time.perf_counter() - started))
    return [
        {"name": name, "count": len(own[_UNTIMED:]), "median_ms": median(own[_UNTIMED:]), **_cost(said)}
        for name, own, said in zip(names, times, results, strict=True)
    ]


def _join(out: Path, names: Sequence[str]) -> None:
    """Write results.json, and print a line for each run and mode."""
    runs = {
        name: {**_read(out / name / "run.json"), "test": _read(out / name / "test.json")}
        for name in names
        if (out / name / "test.json").exists()
    }
    times = _read(out / "times.json") if (out / "times.json").exists() else []
    _write(out / "results.json", {"runs": runs, "times": times})
    for mode in FORMS:
        shares = []
        for name in (name for name in runs if name.startswith(mode)):
            run, test = runs[name], runs[name]["test"]
            shares.append(100 * test["right"] / test["count"])
            tokens = f"{test['answer_tokens']:.1f} tokens, {test['thoughts']:.1f} thoughts"
            print(f"{name:12}{shares[-1]:6.2f} %  {run['steps']} steps, {run['seconds']} s, {tokens}")
        took = [each["median_ms"] for each in times if each["name"].startswith(mode)]
        if shares:
            print(f"{mode:12}{fmean(shares):6.2f} %  {' '.join(f'{each:.1f} ms' for each in took)}")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
