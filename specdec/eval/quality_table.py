"""What `specdec eval quality` found, as a few lines of text for a terminal."""

from __future__ import annotations

from specdec.eval.columns import align
from specdec.eval.quality import Quality, QualityResult
from specdec.eval.results import Estimate

WORDS = (
    "KL: of the float32 law from this one, in nats a token, its mean with a 95 % interval over pieces; argmax: same\n"
    "likeliest token; overlap: what the two laws share, which is how often float32 would accept this one's samples"
)


def quality_table(result: QualityResult) -> str:
    """A line for each precision under what was read."""
    lines = [
        f"{result.model}: {result.num_positions:,} positions in {result.num_pieces} pieces of at most "
        f"{result.context} tokens, against its own float32 weights and float32 cache",
        WORDS,
    ]
    if result.interrupted:
        lines.append("interrupted: what follows is what was measured by then")
    header = ("weights", "KV cache", "MB", "perplexity", "mean KL", "95 % interval", "KL p99", "argmax", "overlap")
    return "\n".join([*lines, "", align([header, *map(_row, result.qualities)])])


def _row(quality: Quality) -> tuple[str, ...]:
    return (
        quality.weights,
        quality.kv_cache_dtype,
        f"{quality.weight_bytes / 1e6:,.1f}",
        f"{quality.perplexity.value:.3f}",
        f"{quality.mean_kl.value:.1e}",
        _interval(quality.mean_kl),
        f"{quality.kl_p99:.1e}",
        f"{100 * quality.argmax_agreement.value:.2f} %",
        f"{quality.overlap.value:.4f}",
    )


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"{estimate.low:.1e} to {estimate.high:.1e}"
