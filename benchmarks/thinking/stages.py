"""Train and evaluate what docs/thinking-states.md reports, stage by stage.

    python benchmarks/thinking/stages.py --out runs --babi DIR --gsm8k DIR      # all stages
    python benchmarks/thinking/stages.py --out runs --babi DIR --stage babi --stage eval-babi
    python benchmarks/thinking/stages.py --out runs --tiny                      # a test: tiny model, 2 steps

DIR holds the files of the two data sets: qa1_*_train.txt, qa1_*_test.txt and so on; train.jsonl,
test.jsonl. Without one, its tasks are left out. The commands of a stage run side by side. A stage can
be run again: what is complete is skipped, a run that was interrupted is resumed. Logs are in OUT/logs.

    data            bAbI and GSM8K as JSON lines with gold thoughts
    babi            bAbI 1, 2, 7, 8: thinking, no chain, chain of thought
    entities        entities and two-hop facts: the same three
    long-entities   entities with carried states and a window, for texts longer than the trained ones
    adapter, coin   the built-in models
    gsm8k           GSM8K: the same three, three seeds each; and a quarter and a half of the examples
    eval-..         accuracy, thoughts, latency of these
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FORMS, SEEDS = ("thinking", "none", "cot"), ("0", "1", "2")
ENTITIES, TWO_HOP = f"{HERE / 'entities.py'}:Entities", f"{HERE / 'two_hop.py'}:TwoHop"
BABI = {"qa1": 1, "qa2": 3, "qa7": 2, "qa8": 2}  # shares of a batch
COIN_TASKS = ("parity", "variables", "coin-talk", "variable-talk", "outside")
GSM8K_PARTS = {"1868": 4, "3736": 2}  # a quarter and a half of the examples
# For texts longer than the trained ones: a state says all that holds, and a window hides the rest.
CARRIED = ("--carry", "--chunk", "16", "--max-thought", "32", "--window", "128", "--set", "accumulate=1")


@dataclass(frozen=True)
class Command:
    """A command. result: the file that exists when it is complete; run_folder: of a training run."""

    name: str
    arguments: tuple[str, ...]
    result: Path
    run_folder: Path | None = None

    def line(self) -> list[str]:
        arguments = self.arguments
        if self.run_folder is not None and (self.run_folder / "training.safetensors").is_file():
            device = arguments[arguments.index("--device") :][:2]
            arguments = (
                "-m",
                "holdfast",
                "train",
                "thinking",
                "--out",
                str(self.run_folder),
                "--resume",
                *device,
            )
        return [sys.executable, *arguments]


def plan(o: argparse.Namespace) -> dict[str, list[Command]]:
    """Return the commands of each stage."""
    out = Path(o.out)
    backbone = str(out / "tiny-backbone") if o.tiny else o.backbone
    small = (*_set("examples=8", "max_events=1", "eval_texts=1", "accumulate=1"), "--eval-every", "0")
    budget = ("--minutes", str(o.minutes), "--steps", str(o.steps), "--eval-every", "0")
    lengths = ("--events", "2" if o.tiny else "12,24,36")

    def train(name: str, *arguments: str, result: str = "model.safetensors") -> Command:
        tiny = (*small, "--steps", "2", "--batch", "4") if o.tiny else ()
        line = ("-m", "holdfast", "train", "thinking", "--out", str(out / name), *arguments)
        return Command(name, (*line, *tiny, "--device", o.device), out / name / result, out / name)

    def on_backbone(*tasks: str) -> tuple[str, ...]:
        start = ("--preset", "backbone", "--backbone", backbone, *_each("--task", tasks))
        return start if o.tiny else (*start, *budget)

    def forms(group: str, tasks: Sequence[str], *more: str) -> list[Command]:
        """Thinking and its two baselines, which differ in nothing else."""
        return [train(f"{group}-{form}", *on_backbone(*tasks), "--form", form, *more) for form in FORMS]

    def evaluate(name: str, folders: Sequence[str], tasks: Sequence[str], *more: str) -> Command:
        named = [f"{folder}={out / folder}" for folder in folders]
        memory, length = ("64M", "1024") if o.tiny else (o.kv_memory, "2048")
        engine = ("--device", o.device, "--kv-memory", memory, "--max-model-len", length)
        asked = (*_each("--task", tasks), "--count", "2" if o.tiny else str(o.count), *more)
        line = ("-m", "holdfast", "eval", "thinking", *named, *asked, "--out", str(out / name), *engine)
        return Command(name, line, out / name / "done")

    def convert(script: str, source: Path) -> Command:
        path = out / "data" / f"{source.stem}.jsonl"
        return Command(f"data-{source.stem}", (str(HERE / script), str(source), str(path)), path)

    def babi(part: str) -> dict[str, Path]:
        found = {name: sorted(Path(o.babi).glob(f"{name}_*_{part}.txt")) for name in BABI} if o.babi else {}
        return {name: paths[0] for name, paths in found.items() if paths}

    def files(part: str, *, shares: bool) -> list[str]:
        return [
            f"jsonl:{out / 'data' / path.stem}.jsonl" + (f"={BABI[name]}" if shares else "")
            for name, path in babi(part).items()
        ]

    def gsm8k(name: str, form: str, *more: str) -> Command:
        task = (
            "--preset",
            "backbone",
            "--backbone",
            backbone,
            "--task",
            f"jsonl:{out / 'data' / 'train.jsonl'}",
        )
        shape = ("--form", form, "--batch", "64", "--steps", str(o.gsm8k_steps), "--eval-every", "200")
        return train(f"gsm8k-{form}-{name}", *task, *shape, *_set("workers=1", "eval_texts=400"), *more)

    scratch = (*_set("size=tiny"), *_each("--task", ("coin-talk", ENTITIES, TWO_HOP)), "--form", "none")
    sources = [convert("babi.py", path) for part in ("train", "test") for path in babi(part).values()]
    if o.gsm8k:
        sources += [convert("gsm8k.py", Path(o.gsm8k) / f"{part}.jsonl") for part in ("train", "test")]
    gsm8k_runs = [gsm8k(seed, form, "--seed", seed) for seed in SEEDS for form in FORMS] + [
        gsm8k(f"of-{number}", form, *_set(f"examples={number}"), "--steps", str(o.gsm8k_steps // share))
        for number, share in GSM8K_PARTS.items()
        for form in FORMS
    ]
    adapter = ("--preset", "smollm2-coin", "--backbone", backbone)
    tiny_adapter = ("--preset", "backbone", "--backbone", backbone, "--adapter", "--task", "coin-talk")
    general = (str(HERE / "eval.py"), "general", str(out / "adapter"), "--device", o.device)
    test = f"jsonl:{out / 'data' / 'test.jsonl'}"
    has_babi, has_gsm8k = bool(babi("train")), bool(o.gsm8k)
    return {
        "data": sources + ([train("tiny-backbone", *scratch, "--window", "0")] if o.tiny else []),
        "babi": forms("babi", files("train", shares=True)) if has_babi else [],
        "entities": forms("entities", (f"{ENTITIES}=3", f"{TWO_HOP}=1")),
        "long-entities": [train("long-entities", *on_backbone(ENTITIES), *CARRIED)],
        "adapter": [
            train(
                "adapter", *(tiny_adapter if o.tiny else (*adapter, *budget)), result="thinking.safetensors"
            )
        ],
        "coin": [train("coin", "--preset", "coin", *(() if o.tiny else ("--minutes", str(o.minutes))))],
        "gsm8k": gsm8k_runs if has_gsm8k else [],
        "eval-babi": [
            evaluate("eval-babi", _named("babi"), files("test", shares=False), "--latency"),
        ]
        if has_babi
        else [],
        "eval-entities": [
            evaluate("eval-entities", _named("entities"), (ENTITIES, TWO_HOP), "--latency", *lengths)
        ],
        "eval-long-entities": [evaluate("eval-long-entities", ["long-entities"], [ENTITIES], *lengths)],
        "eval-adapter": [
            evaluate("eval-adapter", ["adapter"], ["coin-talk"], *lengths),
            *([] if o.tiny else [Command("general", general, out / "general.done")]),
        ],
        "eval-coin": [
            evaluate("eval-coin", ["coin"], COIN_TASKS, "--events", "2" if o.tiny else "10,40,60,100")
        ],
        "eval-gsm8k": [evaluate("eval-gsm8k", [each.name for each in gsm8k_runs], [test])]
        if has_gsm8k
        else [],
    }


def _each(option: str, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for value in values for text in (option, value))


def _set(*changes: str) -> tuple[str, ...]:
    return _each("--set", changes)


def _named(group: str) -> list[str]:
    return [f"{group}-{form}" for form in FORMS]


def run_together(commands: list[Command], logs: Path, seconds: float | None) -> bool:
    """Run the incomplete commands side by side. Return whether all are complete.

    After `seconds`, training runs are interrupted, which saves them.
    """
    logs.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTHONUNBUFFERED": "1"}
    running = []
    for each in commands:
        if each.result.exists():
            print(f"{each.name}: complete", flush=True)
            continue
        print(f"{each.name}: {' '.join(each.line()[1:])}", flush=True)
        each.result.parent.mkdir(parents=True, exist_ok=True)
        log = (logs / f"{each.name}.log").open("a")
        running.append(
            (each, subprocess.Popen(each.line(), stdout=log, stderr=log, env=os.environ | settings))
        )
    is_good = True
    for each, process in running:
        left = None if seconds is None else max(1.0, seconds - (time.monotonic() - started))
        try:
            code = process.wait(left)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = process.wait()
        if code == 0 and not each.result.exists():
            each.result.touch()
        print(f"{each.name}: exit {code} after {time.monotonic() - started:.0f} s", flush=True)
        is_good = is_good and code == 0
        if code:
            print((logs / f"{each.name}.log").read_text()[-1500:], flush=True)
    return is_good


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True)
    parser.add_argument("--babi", help="folder of the bAbI files")
    parser.add_argument("--gsm8k", help="folder of the GSM8K files")
    parser.add_argument("--backbone", default="smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--stage", action="append", help="may be repeated; default: all")
    parser.add_argument("--minutes", type=float, default=7.0, help="of each training run, at most")
    parser.add_argument("--steps", type=int, default=2400, help="of a run on the backbone, if they fit")
    parser.add_argument("--gsm8k-steps", type=int, default=600)
    parser.add_argument("--count", type=int, default=1000, help="texts of each task in evaluations")
    parser.add_argument("--kv-memory", default="6G")
    parser.add_argument("--seconds", type=float, help="interrupt (and save) training runs after this time")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, two steps: a test of the commands")
    return parser.parse_args(arguments)


def main() -> int:
    options = read_options()
    stages = plan(options)
    chosen = options.stage or list(stages)
    if unknown := set(chosen) - stages.keys():
        raise SystemExit(f"there is no stage {', '.join(sorted(unknown))}; expected {', '.join(stages)}")
    logs = Path(options.out) / "logs"
    # All stages run, whatever becomes of one: an evaluation of what is there is worth its time.
    results = [run_together(stages[name], logs, options.seconds) for name in chosen]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
