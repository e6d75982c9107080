"""Train and evaluate thinking models and their baselines on a pretrained backbone, stage by stage.

    python scripts/train_thinking.py --out runs --babi DIR --gsm8k DIR             # all stages
    python scripts/train_thinking.py --out runs --babi DIR --stage babi --stage eval-babi
    python scripts/train_thinking.py --out runs --tiny                             # a test: tiny model, 2 steps

DIR holds the files of the two data sets: qa1_*_train.txt, qa1_*_test.txt and so on; train.jsonl,
test.jsonl. Without one, its tasks are left out. The commands of a stage run side by side. A stage can
be run again: what is complete is skipped, a run that was interrupted is resumed. Logs are in OUT/logs.

    samples      the backbone's own answers to general prompts, for mixed batches
    babi         bAbI 1, 2, 7, 8: thinking, no chain, chain of thought
    entities     entities and two-hop facts: thinking, no chain, chain of thought
    long-entities    entities with carried states and a window, for texts longer than the trained ones
    adapter      T and C alone, on coins and general text: the built-in model `smollm2-coin`
    coin         the built-in model `coin`
    gsm8k        GSM8K: thinking, no chain, chain of thought, three seeds each
    gsm8k-data   GSM8K: thinking and no chain on a quarter and a half of the examples
    eval-babi, eval-entities    accuracy, thoughts, latency
    eval-long-entities          accuracy at one, two and three times the trained length
    eval-adapter                the adapter, and 200 general prompts against the backbone's bits
    eval-coin                   the tables of `coin`
    eval-gsm8k                  accuracy of all seeds
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FORMS = ("thinking", "none", "cot")
SEEDS = (0, 1, 2)
TASKS = Path(__file__).parents[1] / "benchmarks" / "thinking"
ENTITIES, TWO_HOP = f"{TASKS / 'entities.py'}:Entities", f"{TASKS / 'two_hop.py'}:TwoHop"
TEXT_TASKS = (ENTITIES, TWO_HOP)
QUIET_TASKS = ("outside", "variable-talk", "stories")  # for the adapter
# For texts longer than the trained ones: a state says all that holds, and a window hides the rest.
CARRIED = ("--carry", "--chunk", "16", "--max-thought", "32", "--window", "128", "--accumulate", "1")
GSM8K_PARTS = ((1868, 4), (3736, 2))  # a quarter and a half of the examples
SHARES = {
    "qa1": 1,
    "qa2": 3,
    "qa7": 2,
    "qa8": 2,
    ENTITIES: 3,
    TWO_HOP: 1,
    "coin-talk": 3,
    "chat": 3,
}  # of a batch


@dataclass(frozen=True)
class Command:
    """One run of holdfast. result: the file that exists when it is complete."""

    name: str
    arguments: tuple[str, ...]
    result: Path
    run_folder: Path | None = None  # of a training run, which can be resumed

    def line(self) -> list[str]:
        arguments = self.arguments
        if self.run_folder is not None and (self.run_folder / "training.safetensors").is_file():
            arguments = ("train", "thinking", "--out", str(self.run_folder), "--resume", *_device(arguments))
        return [sys.executable, "-m", "holdfast", *arguments]


def _share(task: str) -> int:
    """Of a task, or of the file of one."""
    kind, _, path = task.partition(":")
    return SHARES[
        Path(path).name.partition("_")[0] if kind == "jsonl" else "chat" if kind == "chat" else task
    ]


def _device(arguments: tuple[str, ...]) -> tuple[str, ...]:
    at = arguments.index("--device")
    return arguments[at : at + 2]


@dataclass(frozen=True)
class Plan:
    """The commands of all stages."""

    options: argparse.Namespace

    @property
    def out(self) -> Path:
        return Path(self.options.out)

    def stage(self, name: str) -> list[Command]:
        makers = {
            "samples": self._samples,
            "babi": self._babi_runs,
            "entities": self._entities,
            "long-entities": self._long_entities,
            "adapter": self._adapter,
            "coin": self._coin,
            "gsm8k": self._gsm8k,
            "gsm8k-data": self._gsm8k_data,
            "eval-babi": self._eval_babi,
            "eval-entities": self._eval_entities,
            "eval-long-entities": self._eval_long_entities,
            "eval-adapter": self._eval_adapter,
            "eval-coin": self._eval_coin,
            "eval-gsm8k": self._eval_gsm8k,
        }
        return list(makers[name]())

    @property
    def backbone(self) -> str:
        return str(self.out / "tiny-backbone") if self.options.tiny else self.options.backbone

    def _train(self, name: str, *arguments: str, result: str = "thinking.safetensors") -> Command:
        folder = self.out / name
        small = (
            *("--steps", "2", "--batch", "4", "--examples", "8", "-n", "1", "--eval-every", "0"),
            *("--eval-texts", "1", "--accumulate", "1"),
        )
        common = ("--device", self.options.device, *(small if self.options.tiny else ()))
        train = ("train", "thinking", "--out", str(folder), *arguments, *common)
        return Command(name, train, folder / result, folder)

    def _samples(self) -> Iterator[Command]:
        if self.options.tiny:
            vocabulary = ("--task", "coin-talk", "--task", ENTITIES, "--task", TWO_HOP)
            scratch = ("--size", "tiny", *vocabulary, "--form", "none", "--window", "0")
            yield self._train("tiny-backbone", *scratch, result="model.safetensors")
            return
        out = self.out / "general.jsonl"
        quiet = [text for task in QUIET_TASKS for text in ("--task", task)]
        yield Command(
            "samples",
            ("train", "samples", self.backbone, "--out", str(out), "--count", "400", *quiet, *self._engine()),
            out,
        )

    def _babi_runs(self) -> Iterator[Command]:
        tasks = self._babi_tasks("train")
        if not tasks:
            return
        more = () if self.options.examples is None else ("--examples", str(self.options.examples))
        yield from self._forms("babi", tasks, *more)

    def _entities(self) -> Iterator[Command]:
        yield from self._forms("entities", list(TEXT_TASKS))

    def _long_entities(self) -> Iterator[Command]:
        arguments = (*self._on_backbone([ENTITIES]), *CARRIED)
        yield self._train("long-entities", *arguments, result="model.safetensors")

    def _forms(self, group: str, tasks: list[str], *more: str) -> Iterator[Command]:
        """Thinking and its two baselines, which differ in nothing else."""
        for form in FORMS:
            arguments = (*self._on_backbone(tasks), "--form", form, *more)
            yield self._train(f"{group}-{form}", *arguments, result="model.safetensors")

    def _adapter(self) -> Iterator[Command]:
        tasks = ["coin-talk"]
        states: tuple[str, ...] = ("--carry", "--chunk", "4", "--thought-delay", "0", "--max-thought", "32")
        if not self.options.tiny:
            tasks.append(f"chat:{self.out / 'general.jsonl'}")
            # Where hidden states are still small, T reads its last thought in them.
            states = (*states, "--l-in", "16", "--l-out", "16", "--follow-ups", "0.5")
        yield self._train(
            "adapter", *self._on_backbone(tasks), "--adapter", *states, "--learning-rate", "6e-4"
        )

    def _on_backbone(self, tasks: list[str]) -> tuple[str, ...]:
        shares = ",".join(str(_share(task)) for task in tasks)
        named = [text for task in tasks for text in ("--task", task)]
        base = ("--preset", "backbone", "--backbone", self.backbone, *named, "--shares", shares)
        if self.options.tiny:
            return base
        return (*base, *self._minutes(), "--steps", str(self.options.steps), "--eval-every", "0")

    def _coin(self) -> Iterator[Command]:
        yield self._train("coin", "--preset", "coin", *self._minutes(), result="model.safetensors")

    def _gsm8k(self) -> Iterator[Command]:
        for seed in SEEDS:
            for form in FORMS:
                yield from self._gsm8k_run(f"gsm8k-{form}-{seed}", form, "--seed", str(seed))

    def _gsm8k_data(self) -> Iterator[Command]:
        """As many epochs of fewer examples."""
        for examples, share in GSM8K_PARTS:
            steps = ("--steps", str(self.options.gsm8k_steps // share))
            for form in FORMS:
                name = f"gsm8k-{form}-of-{examples}"
                yield from self._gsm8k_run(name, form, "--examples", str(examples), *steps)

    def _gsm8k_run(self, name: str, form: str, *more: str) -> Iterator[Command]:
        path = self._gsm8k_file("train")
        if path is None:
            return
        yield self._train(
            name,
            *("--preset", "backbone", "--backbone", self.backbone, "--task", f"jsonl:{path}"),
            *(
                "--form",
                form,
                "--batch",
                "64",
                "--steps",
                str(self.options.gsm8k_steps),
            ),
            *("--workers", "1", "--eval-every", "200", "--eval-texts", "400", *more),
            result="model.safetensors",
        )

    def _eval_babi(self) -> Iterator[Command]:
        tasks = self._babi_tasks("test")
        if tasks:
            yield self._eval(self.out / "eval-babi", "babi", tasks, "--latency")

    def _eval_entities(self) -> Iterator[Command]:
        more = ("--latency", "--events", self._lengths())
        yield self._eval(self.out / "eval-entities", "entities", list(TEXT_TASKS), *more)

    def _eval_long_entities(self) -> Iterator[Command]:
        folders = [f"carried={self.out / 'long-entities'}"]
        out = self.out / "eval-long-entities"
        yield self._eval_command(out.name, out, folders, [ENTITIES], "--events", self._lengths())

    def _eval(self, out: Path, group: str, tasks: list[str], *more: str) -> Command:
        """Thinking and its two baselines."""
        folders = [f"thinking={self.out / f'{group}-thinking'}"]
        for form in FORMS[1:]:
            folders += ["--baseline", f"{form}={self.out / f'{group}-{form}'}"]
        return self._eval_command(f"eval-{group}", out, folders, tasks, *more)

    def _eval_command(
        self, name: str, out: Path, folders: list[str], tasks: list[str], *more: str
    ) -> Command:
        count = "2" if self.options.tiny else str(self.options.count)
        named = [text for task in tasks for text in ("--task", task)]
        counts = (
            "--count",
            count,
            "--baseline-count",
            count,
            "--latency-count",
            "2" if self.options.tiny else "25",
        )
        arguments = ("eval", "thinking", *folders, *named, *counts, *more, "--out", str(out), *self._engine())
        return Command(name, arguments, out / "eval-thinking.done")

    def _eval_adapter(self) -> Iterator[Command]:
        tasks = ["coin-talk"]
        folders = [f"adapter={self.out / 'adapter'}"]
        more = ("--general",) if not self.options.tiny else ()
        yield self._eval_command(
            "eval-adapter", self.out / "eval-adapter", folders, tasks, "--events", self._lengths(), *more
        )

    def _eval_coin(self) -> Iterator[Command]:
        folders = [f"coin={self.out / 'coin'}"]
        lengths = "2" if self.options.tiny else "10,40,60,100"
        tasks = ["parity", "variables", "coin-talk", "variable-talk", "outside"]
        yield self._eval_command("eval-coin", self.out / "eval-coin", folders, tasks, "--events", lengths)

    def _eval_gsm8k(self) -> Iterator[Command]:
        path = self._gsm8k_file("test")
        if path is None:
            return
        names = [f"{form}-{seed}" for seed in SEEDS for form in FORMS]
        names += [f"{form}-of-{examples}" for examples, _ in GSM8K_PARTS for form in FORMS]
        # Those of gsm8k-data are there only after that stage.
        names = [name for name in names if (self.out / f"gsm8k-{name}" / "config.json").is_file()] or names[
            :9
        ]
        folders = [f"{name}={self.out / f'gsm8k-{name}'}" for name in names]
        yield self._eval_command("eval-gsm8k", self.out / "eval-gsm8k", folders, [f"jsonl:{path}"])

    def _lengths(self) -> str:
        return "2" if self.options.tiny else "12,24,36"

    def _minutes(self) -> tuple[str, ...]:
        return () if self.options.tiny else ("--minutes", str(self.options.minutes))

    def _engine(self) -> tuple[str, ...]:
        memory = "64M" if self.options.tiny else self.options.kv_memory
        length = "1024" if self.options.tiny else "2048"
        return ("--device", self.options.device, "--kv-memory", memory, "--max-model-len", length)

    def _babi_tasks(self, part: str) -> list[str]:
        if not self.options.babi:
            return []
        found = (sorted(Path(self.options.babi).glob(f"qa{number}_*_{part}.txt")) for number in (1, 2, 7, 8))
        tasks = [f"jsonl:{self._converted('babi', path)}" for paths in found for path in paths]
        if not tasks:
            raise SystemExit(f"{self.options.babi} has no qa*_{part}.txt")
        return tasks

    def _gsm8k_file(self, part: str) -> Path | None:
        if not self.options.gsm8k:
            return None
        return self._converted("gsm8k", Path(self.options.gsm8k) / f"{part}.jsonl")

    def _converted(self, data: str, source: Path) -> Path:
        """The file as JSON lines with gold thoughts, written if it is not there yet."""
        path = self.out / "data" / f"{source.stem}.jsonl"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run([sys.executable, str(TASKS / f"{data}.py"), str(source), str(path)], check=True)
        return path


STAGES = (
    "samples",
    "babi",
    "entities",
    "long-entities",
    "adapter",
    "coin",
    "gsm8k",
    "gsm8k-data",
    "eval-babi",
    "eval-entities",
    "eval-long-entities",
    "eval-adapter",
    "eval-coin",
    "eval-gsm8k",
)


def run_together(commands: list[Command], logs: Path, seconds: float | None) -> bool:
    """Run the incomplete commands side by side. After `seconds`, training runs are interrupted, which
    saves them. Returns whether all are complete.
    """
    logs.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    environment = {
        **os.environ,
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTHONUNBUFFERED": "1",
    }
    running = []
    for each in commands:
        if each.result.exists():
            print(f"{each.name}: complete", flush=True)
            continue
        print(f"{each.name}: {' '.join(each.line()[1:])}", flush=True)
        log = (logs / f"{each.name}.log").open("a")
        running.append((each, subprocess.Popen(each.line(), stdout=log, stderr=log, env=environment)))
    is_good = True
    for each, process in running:
        left = None if seconds is None else max(1.0, seconds - (time.monotonic() - started))
        try:
            code = process.wait(left)
        except subprocess.TimeoutExpired:
            process.send_signal(2)
            code = process.wait()
        if code == 0 and each.result.suffix == ".done":
            each.result.write_text("")
        print(f"{each.name}: exit {code} after {time.monotonic() - started:.0f} s", flush=True)
        is_good = is_good and code == 0
        if code:
            print((logs / f"{each.name}.log").read_text()[-1500:], flush=True)
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True)
    parser.add_argument("--babi", help="folder of the bAbI files")
    parser.add_argument("--gsm8k", help="folder of the GSM8K files")
    parser.add_argument("--backbone", default="smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--stage", action="append", choices=STAGES, help="may be repeated; default: all")
    parser.add_argument(
        "--together", action="store_true", help="run the commands of all these stages side by side"
    )
    parser.add_argument("--minutes", type=float, default=7.0, help="of each training run, at most")
    parser.add_argument("--steps", type=int, default=2400, help="of a run on the backbone, if they fit")
    parser.add_argument("--examples", type=int, help="use only the first questions of each bAbI file")
    parser.add_argument("--gsm8k-steps", type=int, default=600)
    parser.add_argument("--count", type=int, default=1000, help="texts of each task in evaluations")
    parser.add_argument("--kv-memory", default="6G")
    parser.add_argument("--seconds", type=float, help="interrupt (and save) training runs after this time")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, two steps: a test of the commands")
    parser.add_argument("--dry-run", action="store_true", help="only print the commands")
    options = parser.parse_args()
    plan = Plan(options)
    stages = [plan.stage(name) for name in options.stage or STAGES]
    if options.dry_run:
        for each in (command for stage in stages for command in stage):
            print(" ".join(each.line()[1:]))
        return 0
    if options.together:
        stages = [[command for stage in stages for command in stage]]
    # All stages run, whatever becomes of one: an evaluation of what is there is worth its time.
    results = [run_together(stage, plan.out / "logs", options.seconds) for stage in stages]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
