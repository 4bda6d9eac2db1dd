"""The measurements as tables for a terminal."""

from __future__ import annotations

import torch

from specdec.eval.bench.latency import Latency
from specdec.eval.bench.steps import StepCurve
from specdec.eval.bench.throughput import Throughput
from specdec.eval.columns import Rows, align


def latency_table(result: Latency) -> str:
    rows: Rows = [("prompt", "proposer", "k", "first token ms", "ms/token", "per step", "speed-up")]
    for point in result.points:
        rows.append(
            (
                f"{point.prompt_length:,}",
                *_who(point.proposer, point.num_speculative_tokens),
                f"{point.first_token_ms:.1f}",
                f"{point.per_token_ms:.2f}",
                f"{point.tokens_per_step:.2f}",
                f"{point.speedup:.2f}",
            )
        )
    heading = (
        f"{result.model}: greedy, batch 1, {result.max_tokens} tokens; medians (quartiles) of {result.num_rounds} "
        "rounds, in turns"
    )
    parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in result.start_up_seconds.items())
    start_up = f"start-up {sum(result.start_up_seconds.values()):.2f} s: {parts}"
    return "\n".join((heading, align(rows), start_up, _threads(result.num_threads)))


def throughput_table(result: Throughput) -> str:
    rows: Rows = [("batch", "proposer", "k", "decode tok/s", "total tok/s", "per step", "speed-up")]
    for point in result.points:
        rows.append(
            (
                str(point.batch_size),
                *_who(point.proposer, point.num_speculative_tokens),
                f"{point.decode_tokens_per_s:.1f}",
                f"{point.total_tokens_per_s:.1f}",
                f"{point.tokens_per_step:.2f}",
                f"{point.speedup:.2f}",
            )
        )
    heading = (
        f"{result.model}: greedy, prompts of {result.prompt_length} tokens, answers of {result.max_tokens}; medians "
        f"(quartiles) of {result.num_rounds} rounds, in turns"
    )
    return "\n".join((heading, align(rows), _threads(result.num_threads)))


def curve_table(result: StepCurve) -> str:
    rows: Rows = [("rows", "step ms", "T(M)/T(1)", "forward ms", "outside ms", "MB read", "GB/s", "of reading")]
    for point in result.points:
        rows.append(
            (
                str(point.num_rows),
                f"{point.step_ms:.2f}",
                f"{point.ratio:.2f}",
                f"{point.forward_ms:.2f}",
                f"{point.outside_ms:.3f}",
                f"{(point.weight_bytes + point.kv_bytes) / 1e6:.0f}",
                f"{point.gigabytes_per_s:.1f}",
                f"{100 * point.share:.0f} %",
            )
        )
    heading = (
        f"A whole step of {result.model} after {result.context} tokens; medians (quartiles) of {result.num_rounds} "
        f"rounds. Reading alone: {result.read_gigabytes_per_s:.1f} GB/s"
    )
    return "\n".join((heading, align(rows), _threads(result.num_threads)))


def _who(proposer: str, k: int) -> tuple[str, str]:
    return ("plain", "") if proposer == "none" else (proposer, str(k))


def _threads(num_threads: int) -> str:
    return f"torch {torch.__version__}, {num_threads} threads"
