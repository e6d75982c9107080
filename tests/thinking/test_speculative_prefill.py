"""Speculative prefill of a thinking model equals reading chunk by chunk, bit for bit in every KV slot, in fewer passes."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast.bench.stress import result_bits
from holdfast.core.results import Result, Stats
from holdfast.engine.engine import Engine
from holdfast.numerics.bits import bits_of
from holdfast.numerics.recipe import KernelBackend
from holdfast.scheduler.policy import DeterminismMode
from holdfast.scheduler.request_state import RequestState
from holdfast.thinking.config import WEIGHTS_FILE
from holdfast.thinking.log import MAX_GUESSES, ThoughtLog
from support.thinking_engines import (
    Ids,
    ask_all,
    change_thinking,
    draw_prompt,
    greedy,
    open_thinker,
    thinker_of,
    with_guesses,
)
from support.thinking_models import thinker_folder

CHUNK = 4
Slots = tuple[bytes, ...]
Watched = dict[Ids, Slots]


def _never(folder: Path) -> None:
    """T's first token is always the end of its thought."""
    weights = load_file(folder / WEIGHTS_FILE)
    weights["t.norm.weight"].zero_()  # equal logits: the lowest id
    save_file(weights, folder / WEIGHTS_FILE)
    change_thinking(folder, end_id=0)


def _always(folder: Path) -> None:
    """A token T never begins with."""
    change_thinking(folder, end_id=4)


def _carried(folder: Path) -> None:
    change_thinking(folder, carry=True)


def _settled(folder: Path) -> None:
    change_thinking(folder, settle=True)


KINDS: dict[str, Callable[[Path], None]] = {
    "some": lambda folder: None,
    "none": _never,
    "all": _always,
    "carried": _carried,
    "settled": _settled,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for kind, make in KINDS.items():
        found[kind] = thinker_folder(
            tmp_path_factory.mktemp(kind) / "model", chunk=CHUNK, while_answering=True
        )
        make(found[kind])
    return found


def _slots(engine: Engine, seq: RequestState) -> Slots:
    """Every bit of what stands in the slots of a sequence's settled rows, and of the states of its chunks."""
    size, thinker = engine.scheduler.pool.page_size, thinker_of(engine)
    length = seq.canonical_len if seq.deterministic else seq.computed_len
    held, positions = torch.tensor(seq.page_table.pages), torch.arange(length)
    pages, offsets = held[positions // size], positions % size
    slots = pages * size + offsets
    found = [thinker.residuals[slots]]
    for layer in engine.runner._store.layers:  # type: ignore[attr-defined]
        found += [layer.keys[pages, :, :, offsets], layer.values[pages, :, offsets]]
    thoughts = seq.extension
    assert isinstance(thoughts, ThoughtLog)
    of_chunks = torch.arange(thoughts.rule.num_closed(length, CHUNK) * CHUNK)
    whole = held[of_chunks // size] * size + of_chunks % size
    told = thinker.has_state[whole]
    found += [told, thinker.states[whole] * told[:, None]]
    return tuple(bits_of(each.contiguous()).numpy().tobytes() for each in found)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Engine], Watched]:
    """What stands in the slots of each sequence when it gives them up, by its tokens."""

    def watch(engine: Engine) -> Watched:
        found: Watched = {}
        give_up = RequestState.give_up_pages

        def look(seq: RequestState) -> None:
            found[seq.tokens.ids(0, seq.tokens.committed_len)] = _slots(engine, seq)
            give_up(seq)

        monkeypatch.setattr(RequestState, "give_up_pages", look)
        return found

    return watch


def _read(
    engine: Engine,
    prompts: list[Ids],
    watch: Callable[[Engine], Watched],
    max_guesses: int,
    **schedule: object,
) -> tuple[list[Result], Watched]:
    usual = with_guesses(engine.scheduler.config, max_guesses)
    how = replace(usual, prefix_cache=False, **schedule)  # type: ignore[arg-type]
    engine = engine.restarted(how)
    seen = watch(engine)
    results = [
        one for at in range(0, len(prompts), 25) for one in ask_all(engine, prompts[at : at + 25], greedy(2))
    ]
    return results, seen


def _sum(results: list[Result]) -> Stats:
    total = Stats()
    for result in results:
        for name in ("prefill_passes", "guessed", "guessed_right"):
            setattr(total, name, getattr(total, name) + getattr(result.stats, name))
    return total


def compare(
    engine: Engine, prompts: list[Ids], watch: Callable[[Engine], Watched], **schedule: object
) -> tuple[Stats, Stats, list[Result]]:
    guessing, seen = _read(engine, prompts, watch, MAX_GUESSES, **schedule)
    stepping, truth = _read(engine, prompts, watch, 0, **schedule)
    assert [result_bits(result) for result in guessing] == [result_bits(result) for result in stepping]
    assert len(truth) == len(prompts)
    assert seen == truth
    quick, slow = _sum(guessing), _sum(stepping)
    assert slow.guessed == slow.guessed_right == 0
    assert slow.prefill_passes >= sum(-(-len(prompt) // CHUNK) for prompt in prompts)
    return quick, slow, guessing


@pytest.mark.parametrize("kind", KINDS)
def test_speculative_prefill_equals_chunk_by_chunk(
    kind: str, folders: dict[str, Path], watched: Callable[[Engine], Watched]
) -> None:
    engine = open_thinker(folders[kind])
    rng = random.Random(kind)
    prompts = [draw_prompt(rng, rng.randint(1, 90), 290) for _ in range(100)]
    quick, slow, results = compare(engine, prompts, watched)
    print(
        f"{quick.prefill_passes} passes for {slow.prefill_passes}, {quick.guessed_right} of {quick.guessed} guesses right"
    )
    thoughts = [thought.token_ids for result in results for thought in result.thoughts]
    trivial = sum(not thought for thought in thoughts)
    if kind == "none":
        assert trivial == len(thoughts)
        assert quick.guessed == quick.guessed_right
        assert quick.prefill_passes < 1.5 * len(prompts)  # a prompt waits where a pass is full
    elif kind == "all":
        assert trivial == 0
        assert quick.prefill_passes < slow.prefill_passes
    else:
        assert 0 < trivial < len(thoughts)
        assert quick.prefill_passes < slow.prefill_passes


@pytest.mark.parametrize(
    ("kernels", "mode"), [("c", "verify"), pytest.param("torch", "verify", marks=pytest.mark.long)]
)
def test_speculative_prefill_equals_chunk_by_chunk_on_other_backends(
    kernels: KernelBackend,
    mode: DeterminismMode,
    folders: dict[str, Path],
    watched: Callable[[Engine], Watched],
) -> None:
    engine = open_thinker(folders["some"], kernels, determinism="off")
    engine.limits = replace(engine.limits, refusal=None)  # not certified, so that all is verified
    rng = random.Random(kernels + mode)
    prompts = [draw_prompt(rng, rng.randint(1, 90), 290) for _ in range(16)]
    rows = rng.choice([32, 48])
    compare(engine, prompts, watched, determinism=mode, max_pass_tokens=rows)
