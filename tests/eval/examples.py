"""A small result whose numbers all differ, so that a page can be asked for each of them."""

from __future__ import annotations

from specdec.eval.results import (
    Ceiling,
    Curve,
    CurvePoint,
    Divergence,
    Estimate,
    Exactness,
    Group,
    GroupSpeed,
    Machine,
    Oracle,
    Origin,
    OutputRange,
    Piece,
    PlainRun,
    Position,
    Prediction,
    Result,
    Run,
    Sample,
    Settings,
    Shadowed,
    Speed,
    Timing,
    Versions,
)

ORIGIN = Origin(
    command="specdec eval acceptance --model tiny --proposer ngram",
    commit="0123456789ab+",
    date="2026-01-02T03:04:05Z",
    versions=Versions("0.1.0", "2.11.3", "5.2.7", "3.11.9"),
    machine=Machine("A processor", 12, 6, 0.37),
)
SETTINGS = Settings("tiny", "float32", "auto", ("chat", "code"), 193, 17, 419, 13, (1, 4), 2003, 0.95, concurrency=21)
SAMPLE = Sample(
    "chat",
    "chat",
    "chat-01",
    "Why is the sky blue?",
    (Piece("Because", "bonus"), Piece(" of", "ngram"), Piece("\n", "ngram"), Piece("air", "recovered")),
)
LENGTHS = (0.297, 0.0, 0.703)
PREDICTION = Prediction(1.871, LENGTHS, 0.0511, 0.0617, 0.000213, 0.00149, 0.00151, 0.0523, 1.433)


def group(task: str | None, category: str | None, start: int) -> Group:
    """Counts from `start` on."""
    positions = (Position(1, start + 20, start + 20, start + 13), Position(2, start + 17, start + 11, start + 7))
    rate = Estimate(0.5 + start / 1e4, 0.4 + start / 1e4, 0.6 + start / 1e4)
    length = Estimate(2 + start / 1e3, 1.8 + start / 1e3, 2.2 + start / 1e3)
    counts = (start, start + 1000, start + 600, start + 20, start + 37, start + 20)
    return Group(task, category, *counts, rate, length, positions)


def speed(batch_size: int, start: float) -> Speed:
    plain = Timing(batch_size, 13 + batch_size, 701 + batch_size, start, start / 700)
    own = Timing(batch_size, 23 + batch_size, 703 + batch_size, start / 1.43, start / 1010)
    return Speed(plain, own, Estimate(1.43 + batch_size / 100, 1.31, 1.57))


def run(
    proposer: str = "ngram",
    k: int = 2,
    temperature: float = 0.0,
    *,
    prediction: Prediction | None = PREDICTION,
    complete: bool = True,
    alarm: str | None = None,
    samples: tuple[Sample, ...] = (SAMPLE,),
) -> Run:
    groups = (
        group(None, None, 211),
        group("chat", None, 223),
        group("code", None, 227),
        group("chat", "chat", 223),
        group("code", "python", 233),
        group("code", "rust", 239),
    )
    return Run(
        proposer=proposer,
        num_speculative_tokens=k,
        temperature=temperature,
        groups=groups,
        output_ranges=(OutputRange(0, 32, 107, 331, 149), OutputRange(32, 64, 109, 337, 139)),
        distinct=(0.611, 0.823, None),
        exactness=Exactness("greedy", "bytes", True, 211, 210, (Divergence("code", "code-07", 43, 5003, None),)),
        samples=samples,
        speeds=(speed(1, 41.3), speed(4, 17.9)),
        prediction=prediction,
        group_speeds=(
            GroupSpeed("chat", None, speed(1, 43.7), prediction),
            GroupSpeed("code", None, speed(1, 47.9), prediction),
            GroupSpeed("chat", "chat", speed(1, 43.7), prediction),
            GroupSpeed("code", "python", speed(1, 53.1), prediction),
            GroupSpeed("code", "rust", speed(1, 59.3), prediction),
        ),
        complete=complete,
        alarm=alarm,
    )


def oracle(proposer: str | None, k: int, task: str | None, start: int, *, measured: bool = True) -> Oracle:
    """Steps from `start` on."""
    positions = (Position(1, start + 91, start + 91, start + 41), Position(2, start + 89, start + 40, start + 29))
    agreed = (start + 109, start + 19, start + 31)
    members = (
        Shadowed(
            "ngram",
            k,
            start + 59,
            start + 61 if measured else None,
            agreed,
            positions,
            Ceiling(start + 701, 279, 457, 601),
        ),
        Shadowed("suffix", k, start + 67, None, agreed[:1], positions[:1]),
    )
    share = Estimate(0.9 + start / 1e5, 0.8 + start / 1e5, 0.95 + start / 1e5) if measured else None
    steps = (start + 71, start + 73, start + 79, start + 47, start + 83 if measured else None)
    return Oracle(proposer, k, task, members, start + 7, start + 701, *steps, share)


def result(*runs: Run, interrupted: bool = False) -> Result:
    """Of the given runs, or of one."""
    plain = PlainRun(0.0, 211, 40009, (0.587, 0.799, 0.863), (speed(1, 41.3).plain, speed(4, 17.9).plain))
    points = (CurvePoint(1, 0.0511, 1.0), CurvePoint(2, 0.0532, 1.041), CurvePoint(3, 0.0567, 1.109))
    return Result(
        origin=ORIGIN,
        settings=SETTINGS,
        plain=(plain,),
        runs=runs or (run(),),
        curve=Curve(317, 7, points),
        oracles=(
            oracle("auto", 18, None, 1301),
            oracle("auto", 18, "chat", 1511),
            oracle(None, 2, None, 1709, measured=False),
        ),
        skipped=("chat/chat-19",),
        failures=("code/code-11, ngram k=2, T=0: out of blocks",),
        regressions=("ngram: mean acceptance length 1.2 is under 1.9",),
        interrupted=interrupted,
    )
