"""The figures of `bench gpu` as tables, beside those of vLLM and our goals."""

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from holdfast.bench.gpu.cells import CELLS, Cell
from holdfast.bench.gpu.report import (
    BreakdownSection,
    CellRow,
    CellSection,
    CertificateSection,
    GpuReport,
    MoeSection,
    SpeedSection,
    StressSection,
)
from holdfast.bench.gpu.speed import AUTO, OFF, ORDINARY, VERIFY, VERIFY_PLAIN
from holdfast.bench.peers import (
    GOAL_AUTO_RATIO,
    GOAL_PREFILL,
    GOAL_VERIFY_RATIO,
    GOALS,
    SOURCE,
    VLLM_PREFILL,
    peer_of,
)
from holdfast.bench.tables import make_table, open_console

_NONE = "-"


def show_report(report: GpuReport, console: Console | None = None) -> None:
    """All sections of the report."""
    console = console or open_console(file_width=140)
    console.print(f"{report.machine}, torch {report.torch}, triton {report.triton}")
    show: Mapping[str, Callable[[Any, Console], None]] = {
        "cells": show_cells,
        "speed": show_speed,
        "small": show_speed,
        "verify": show_verify,
        "certificate": show_certificate,
        "stress": show_stress,
        "breakdown": show_breakdown,
        "moe": show_moe,
    }
    for name, section in report.sections.items():
        show[name](section, console)
        if section.cut_off:
            console.print(f"[yellow]{name}: cut off after section_seconds[/]")
    for name, error in report.errors.items():
        console.print(f"[red]{name}: {error}[/]", markup=True)


def show_moe(found: MoeSection, console: Console) -> None:
    cells = {
        row.cell: Cell(row.cell, row.title, row.streams, goal=GOAL_AUTO_RATIO) for row in found.cells.rows
    }
    show_cells(found.cells, console, cells)
    read = ", ".join(f"{count:.1f} at N = {streams}" for streams, count in found.experts_read.items())
    console.print(f"experts of a layer that a step reads: {read}")
    show_breakdown(BreakdownSection(found.model, found.dtype, found.steps), console)


def show_cells(found: CellSection, console: Console, cells: Mapping[str, Cell] = CELLS) -> None:
    table = make_table(
        f"output tok/s through LLM.generate ({found.model}, {found.dtype}, all deterministic)",
        *("cell", "variant", "tok/s", OFF.name, "of off", "compared with", "ratio", "goal", "further"),
        num_left=2,
    )
    for row in found.rows:
        if row.variant != OFF.name:
            table.add_row(*_cell_columns(found, row, cells))
    console.print(table)
    for name, stages in found.starts.items():
        seconds = ", ".join(f"{stage} {took:.1f} s" for stage, took in stages.items())
        console.print(f"{name} start to the first deterministic token: {seconds}")
    for name, error in found.errors.items():
        console.print(f"[red]{name}[/]: ", end="")
        console.print(error, markup=False)


def _cell_columns(found: CellSection, row: CellRow, cells: Mapping[str, Cell]) -> list[str]:
    """The columns of one cell. The goal is coloured by what was measured."""
    cell = cells[row.cell]
    off = found.speed(cell.name, OFF.name)
    if off is None and cell.beside is not None:
        off = found.speed(cell.beside, OFF.name)
    of_off = None if off is None else row.speed / off
    ratio = cell_ratio(found, row, cells)
    goal = _NONE
    if cell.goal is not None and ratio is not None:
        goal = f"[{'green' if ratio >= cell.goal else 'red'}]{cell.goal}[/]"
    elif cell.goal_speed is not None:
        goal = f"[{'green' if row.speed >= cell.goal_speed else 'red'}]{cell.goal_speed:,.0f} tok/s[/]"
    compared = {"json": "no schema"}.get(
        cell.kind, OFF.name if _is_beside_off(row) else cell.beside or OFF.name
    )
    return [
        *(row.title, row.variant, f"{row.speed:,.1f}", _NONE if off is None else f"{off:,.1f}"),
        *(_NONE if of_off is None else f"{of_off:.3f}", compared, _NONE if ratio is None else f"{ratio:.3f}"),
        *(goal, ", ".join(f"{name} {value:,.3f}" for name, value in row.figures.items())),
    ]


def _is_beside_off(row: CellRow) -> bool:
    return row.variant in (VERIFY.name, VERIFY_PLAIN.name)


def cell_ratio(found: CellSection, row: CellRow, cells: Mapping[str, Cell] = CELLS) -> float | None:
    """What a cell's goal is about: its speed over that of the cell it is compared with. `verify` is
    compared with `off`, the neighbours of structured requests with their own speed without them."""
    cell = cells[row.cell]
    if cell.kind == "json":
        return row.figures.get("of_without")
    variant = OFF.name if cell.beside is None or _is_beside_off(row) else AUTO.name
    other = found.speed(cell.beside or cell.name, variant)
    return None if other is None else row.speed / other


def show_speed(speed: SpeedSection, console: Console) -> None:
    table = make_table(
        f"tok/s ({speed.model}, {speed.dtype}, {speed.prompt_len} in / {speed.num_tokens} out); "
        "in brackets ms per decode step",
        *("N", AUTO.name, ORDINARY.name, OFF.name, "auto / ordinary", "goal", SOURCE, "its batch-invariant"),
    )
    for streams in dict.fromkeys(row.streams for row in speed.rows):
        peer, goal = peer_of(speed.model, streams), GOALS.get(speed.model, {}).get(streams)
        table.add_row(
            str(streams),
            *(_cell(speed, variant.name, streams) for variant in (AUTO, ORDINARY, OFF)),
            _ratio(speed.ratio(AUTO.name, ORDINARY.name, streams), GOAL_AUTO_RATIO),
            _pair(*goal) if goal is not None else _NONE,
            _pair(peer.speed, peer.step_ms) if peer is not None else _NONE,
            _pair(peer.invariant_speed, peer.invariant_step_ms) if peer is not None else _NONE,
        )
    console.print(table)
    if speed.prefill:
        found = ", ".join(f"{name} {value:,.0f}" for name, value in speed.prefill.items())
        peer_prefill = VLLM_PREFILL.get(speed.model)
        beside = (
            f"; {SOURCE}: {peer_prefill:,.0f}; goal {GOAL_PREFILL:,.0f}" if peer_prefill is not None else ""
        )
        console.print(f"prefill of {speed.prefill_tokens} tokens, tok/s: {found}{beside}")
    _show_revocations(speed, console)


def show_verify(speed: SpeedSection, console: Console) -> None:
    table = make_table(
        f"verify ({speed.model}, {speed.dtype}, {speed.prompt_len} in / {speed.num_tokens} out)",
        *("N", "variant", "tok/s", f"of {OFF.name}", "candidates", "rolled back", "rollback rate"),
    )
    for row in speed.rows:
        goal = GOAL_VERIFY_RATIO if row.variant == VERIFY.name else 0.0
        verified = row.variant in (VERIFY.name, VERIFY_PLAIN.name)
        table.add_row(
            *(str(row.streams), row.variant, f"{row.speed:,.0f}"),
            _ratio(speed.ratio(row.variant, OFF.name, row.streams), goal),
            *((str(row.candidates), str(row.rolled_back)) if verified else (_NONE, _NONE)),
            _rate(row.rolled_back, row.candidates) if verified else _NONE,
        )
    console.print(table)
    _show_revocations(speed, console)


def show_certificate(found: CertificateSection, console: Console) -> None:
    rows = list(dict.fromkeys(rows for product in found.products for rows in product.cost))
    table = make_table(
        f"GEMMs at {found.sizes} batch sizes, {found.dtype}; cost: time relative to the plain call, by rows",
        *("model", "GEMM", "N x K", "split-K", "certified", "classes, plain"),
        *(f"at {one}" for one in rows),
    )
    for product in found.products:
        agreeing = f"{product.num_agreeing} of {product.num_tried}"
        table.add_row(
            *(product.model, product.name, f"{product.outputs} x {product.inputs}", str(product.slices)),
            f"[{'green' if product.is_certified else 'red'}]{agreeing}[/]",
            str(product.plain_classes),
            *(f"{product.cost[one]:.2f}" if one in product.cost else _NONE for one in rows),
        )
    console.print(table)
    console.print("seconds: " + ", ".join(f"{name} {took:.1f}" for name, took in found.seconds.items()))


def show_stress(found: StressSection, console: Console) -> None:
    table = make_table(
        "one request inside random loads",
        *("model", "mode", "request", "runs", "distinct outputs", "distinct tokens", "rolled back", "rate"),
        *("preempted", "checks", "revoked"),
    )
    for one in found.rows:
        good = one.distinct == 1 if one.guarantee else True
        verified = one.mode == "verify"
        table.add_row(
            *(one.model, one.mode, one.asked, str(one.runs)),
            f"[{'green' if good else 'red'}]{one.distinct}[/]",
            str(one.distinct_tokens),
            *((str(one.rolled_back), _rate(one.rolled_back, one.candidates)) if verified else (_NONE, _NONE)),
            *(str(one.preemptions), str(one.checks), str(one.revocations)),
        )
    console.print(table)
    for model, agrees in found.one_answer.items():
        console.print(
            f"{model}: {'one answer' if agrees else '[red]several answers[/]'} over auto and verify, to the bit"
        )
    for note in found.notes:
        console.print(note, markup=False)


def show_breakdown(found: BreakdownSection, console: Console) -> None:
    kinds = list(dict.fromkeys(kind for step in found.steps for kind in step.by_kind))
    table = make_table(
        f"a decode step, ms ({found.model}, {found.dtype}, all deterministic, auto)",
        *("N", "context", "step", "GPU busy", "busy share", "gap", "memory floor"),
        *kinds,
    )
    for step in found.steps:
        table.add_row(
            *(str(step.streams), str(step.context), f"{step.step_ms:.2f}", f"{step.busy_ms:.2f}"),
            *(f"{100 * step.busy_share:.0f} %", f"{step.gap_ms:.2f}", f"{step.floor_ms:.2f}"),
            *(f"{step.by_kind[kind]:.3f}" if kind in step.by_kind else _NONE for kind in kinds),
        )
    console.print(table)
    if found.prompt is not None:
        kinds_of_prompt = ", ".join(f"{kind} {took:.1f}" for kind, took in found.prompt.by_kind.items())
        console.print(
            f"a prompt of {found.prompt.num_tokens} tokens: {found.prompt.prefill_ms:.1f} ms, GPU busy "
            f"{found.prompt.busy_ms:.1f}, attention {found.prompt.attention_tflops:.0f} TFLOP/s; {kinds_of_prompt}"
        )
    for step in found.steps:
        longest = list(step.kernels.items())[:8]
        console.print(f"longest kernels at N = {step.streams}:", markup=False)
        for name, entry in longest:
            console.print(f"  {entry['ms']:7.3f} ms, {entry['calls']:6.1f} calls: {name[:100]}", markup=False)


def _show_revocations(speed: SpeedSection, console: Console) -> None:
    revoked = sum(row.revocations for row in speed.rows)
    if revoked:
        console.print(f"[red]{revoked} certificates were revoked by spot checks[/]")


def _cell(speed: SpeedSection, variant: str, streams: int) -> str:
    row = speed.row(variant, streams)
    return _pair(row.speed, row.step_ms) if row is not None else _NONE


def _pair(speed: float, step_ms: float | None) -> str:
    return f"{speed:,.0f}" + (f" ({step_ms:.2f})" if step_ms is not None else "")


def _ratio(ratio: float | None, goal: float) -> str:
    if ratio is None:
        return _NONE
    return f"[{'green' if ratio >= goal else 'red'}]{ratio:.3f}[/]"


def _rate(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3f} %" if whole else _NONE
