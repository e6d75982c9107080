"""What a run needs, measured with some of its texts before its first step. No weight changes."""

import resource
import time

import torch

from holdfast_thinking.model.batch import Batch
from holdfast_thinking.model.compiled import autocast
from holdfast_thinking.model.loss import count_tokens, packed_loss
from holdfast_thinking.model.packed import pack, send
from holdfast_thinking.run.loop import TrainingRun

_FEW_STEPS, _LONG_HOURS = 50, 6


def estimate(run: TrainingRun, threads: int | None) -> str:
    """Say what a run needs. Without a number of threads choose all or one, whichever is faster: on a busy
    machine that may be one."""
    batch, s, on_cpu = run.source.batch(run.step), run.settings, run.device.type == "cpu"
    before, all_threads = _peak_memory(run.device), torch.get_num_threads()
    texts = batch.take(slice(None, None, -(-s.batch // 4)))
    if _time(run, texts) < 1:  # it takes a pass to measure it well
        texts = batch.take(slice(None, None, s.accumulate))
    seconds = _time(run, texts)
    if on_cpu and threads is None and all_threads > 1:
        torch.set_num_threads(1)
        alone = _time(run, texts)
        if alone > seconds:
            torch.set_num_threads(all_threads)
        seconds = min(alone, seconds)
    share = float(texts.num_tokens.sum() / batch.num_tokens.sum())
    trained = 4 * sum(each.numel() for each in run.model.parameters() if each.requires_grad)  # bytes
    rows = max(0, _peak_memory(run.device) - before - trained) / share / s.accumulate
    a_step, steps = seconds / share, s.steps - run.step
    if s.minutes is not None:
        steps = min(s.most_steps or 1 << 60, int(60 * s.minutes / a_step))
    said = f"about {a_step:.3g} s a step, {steps} steps in {steps * a_step / 60:.3g} minutes, "
    said += f"{(before + 3 * trained + rows) / 1e9:.1f} GB of memory"
    if not on_cpu:
        return said
    is_slow = steps < min(_FEW_STEPS, s.steps) or steps * a_step > 3600 * _LONG_HOURS
    return f"{said}, {torch.get_num_threads()} of {all_threads} threads{'; this needs a GPU' * is_slow}"


def _time(run: TrainingRun, texts: Batch) -> float:
    """Return the seconds of forward and backward."""
    started = time.perf_counter()
    packed = send(pack(texts, run.model.pack_spec), run.device)
    with autocast(run.device):
        losses = packed_loss(run.model, packed, count_tokens(texts, run.model.thinking), run.settings.weights)
    losses.total.backward()  # type: ignore[no-untyped-call]
    run.model.zero_grad(set_to_none=True)
    losses.total.item()  # waits for the device
    return time.perf_counter() - started


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
