"""Precisions against float32: the figures are those of the models' laws, computed here from the laws themselves."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from specdec.config import EngineConfig
from specdec.engine import Engine, TargetFacts
from specdec.engine.build import assemble
from specdec.eval import quality as module
from specdec.eval.driving import Watch
from specdec.eval.pieces import Piece
from specdec.eval.precisions import Precision, parse_precisions
from specdec.eval.quality import Quality, QualityResult, measure_quality
from specdec.eval.quality_table import quality_table
from specdec.step.model import Model
from specdec.tokenizer import Tokenizer
from tests.heads import tiny_target
from tests.toys import Script, ScriptedModel, byte_tokenizer, random_script

VOCABULARY = 13
CONTEXT = 40
NOISE = {"float32": 0.0, "bfloat16": 0.05, "int4": 1.0}
"""By weights, how far a script's logits are from float32's."""

rng = np.random.default_rng(5)
PIECES: list[Piece] = [tuple(rng.integers(1, VOCABULARY, size).tolist()) for size in (40, 2, 17, 33)]


def script(weights: str) -> Script:
    base, noise = random_script(VOCABULARY), random_script(VOCABULARY, salt=1, spread=NOISE[weights])
    return lambda prefix: np.asarray(base(prefix)) + np.asarray(noise(prefix))


class Built:
    """Builds an engine around the model of a configuration's precision."""

    def __init__(self, models: dict[str, Model] | None = None) -> None:
        self.models = models or {weights: ScriptedModel(script(weights), VOCABULARY) for weights in NOISE}
        self.configs: list[EngineConfig] = []

    def __call__(self, config: EngineConfig) -> Engine:
        self.configs.append(config)
        weights = config.dtype if config.quantization == "none" else config.quantization
        if weights not in self.models:
            raise ValueError(f"there are no weights in {weights}")
        return assemble(config, self.models[weights], TargetFacts(VOCABULARY, 256), byte_tokenizer())


def pieces(tokenizer: Tokenizer) -> list[Piece]:
    return PIECES


def measure(built: Built, precisions: str, watch: Watch | None = None) -> QualityResult:
    return measure_quality(built, EngineConfig(), pieces, parse_precisions(precisions), CONTEXT, watch or Watch())


def law(weights: str, prefix: Piece) -> np.ndarray:
    exponentials = np.exp(script(weights)(prefix))
    return exponentials / exponentials.sum()


def expected(weights: str) -> dict[str, float]:
    """The figures by their definitions, position by position."""
    kl, loss, same, shared = [], [], [], []
    for piece in PIECES:
        for at in range(1, len(piece)):
            ours, base = (law(each, piece[:at]) for each in (weights, "float32"))
            kl.append(sum(b * np.log(b / o) for b, o in zip(base, ours, strict=True)))
            loss.append(-np.log(ours[piece[at]]))
            same.append(ours.argmax() == base.argmax())
            shared.append(sum(map(min, zip(ours, base, strict=True))))
    return {
        "perplexity": float(np.exp(np.mean(loss))),
        "mean_kl": float(np.mean(kl)),
        "kl_p99": float(np.quantile(kl, 0.99)),
        "argmax_agreement": float(np.mean(same)),
        "overlap": float(np.mean(shared)),
    }


def figures(quality: Quality) -> dict[str, float]:
    estimates = ("perplexity", "mean_kl", "argmax_agreement", "overlap")
    return {name: getattr(quality, name).value for name in estimates} | {"kl_p99": quality.kl_p99}


@pytest.mark.parametrize(("step", "rows"), [(256, 32), (7, 3), (1, 1)])
def test_figures_are_those_of_the_laws(monkeypatch: pytest.MonkeyPatch, step: int, rows: int) -> None:
    monkeypatch.setattr(module, "STEP_TOKENS", step)
    monkeypatch.setattr(module, "CHUNK_ROWS", rows)
    result = measure(Built(), "float32,bfloat16,int4")
    assert (result.num_pieces, result.num_positions, result.failures) == (4, 88, ())
    assert [quality.weights for quality in result.qualities] == ["float32", "bfloat16", "int4"]
    for quality in result.qualities:
        assert figures(quality) == pytest.approx(expected(quality.weights), abs=1e-12)
        low, high = quality.mean_kl.low, quality.mean_kl.high
        assert low is not None
        assert high is not None
        assert low <= quality.mean_kl.value <= high
    assert [quality.mean_kl.value for quality in result.qualities] == sorted(
        quality.mean_kl.value for quality in result.qualities
    )


def test_a_real_decoder_is_read_in_chunks_and_its_head_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    models: dict[str, Model] = {"float32": tiny_target(0), "int4": tiny_target(1)}
    whole = measure(Built(models), "float32,int4")
    monkeypatch.setattr(module, "STEP_TOKENS", 5)
    chunked = measure(Built(models), "float32,int4")
    for one, other in zip(whole.qualities, chunked.qualities, strict=True):
        assert figures(one) == pytest.approx(figures(other), abs=1e-9)
    assert figures(whole.qualities[0])["mean_kl"] < 1e-12
    assert figures(whole.qualities[1])["mean_kl"] > 0.01


def test_a_head_holds_the_output_matrix_alone() -> None:
    decoder = tiny_target()
    hidden = torch.randn(3, 16, dtype=torch.float64)
    assert torch.equal(decoder.head()(hidden), decoder.compute_logits(hidden))
    head = weakref.ref(decoder), decoder.head()
    del decoder
    gc.collect()
    assert head[0]() is None


def test_each_precision_is_an_engine_that_never_drafts() -> None:
    built = Built()
    measure(built, "bfloat16/int8,int4")
    assert [(own.dtype, own.quantization, own.kv_cache_dtype) for own in built.configs] == [
        ("float32", "none", "float32"),
        ("bfloat16", "none", "int8"),
        ("auto", "int4", "auto"),
    ]
    assert all(own.speculative == () and not own.enable_prefix_caching for own in built.configs)


def test_a_precision_that_cannot_be_had_does_not_end_the_others() -> None:
    result = measure(Built(), "int8,int4")
    assert result.failures == ("int8: there are no weights in int8",)
    assert [quality.precision for quality in result.qualities] == ["int4"]


@pytest.mark.parametrize(
    ("lengths", "said"),
    [((5,), "int4: the model's logits are not finite"), ((40,), "int4: a request failed: the model's logits")],
)
def test_logits_that_are_no_numbers_are_a_failure(lengths: tuple[int, ...], said: str) -> None:
    sound = script("int4")

    def broken(prefix: tuple[int, ...]) -> np.ndarray:
        return np.full(VOCABULARY, np.nan) if len(prefix) in lengths else sound(prefix)

    models: dict[str, Model] = {
        "float32": ScriptedModel(script("float32"), VOCABULARY),
        "int4": ScriptedModel(broken, VOCABULARY),
    }
    result = measure(Built(models), "int4,float32")
    (failure,) = result.failures
    assert failure.startswith(said)
    assert [quality.precision for quality in result.qualities] == ["float32"]


def test_a_stop_keeps_what_was_measured() -> None:
    said: list[str] = []
    watch = Watch(said.append, lambda: any(line.startswith("int4") for line in said))
    result = measure(Built(), "bfloat16,int4", watch)
    assert result.interrupted
    assert [quality.precision for quality in result.qualities] == ["bfloat16"]
    assert "interrupted" in quality_table(result)


def test_pieces_too_long_for_the_model_are_refused() -> None:
    def long(tokenizer: Tokenizer) -> list[Piece]:
        return [(1,) * 256]

    with pytest.raises(ValueError, match="pieces of 256 tokens are too long for this model; at most 255 will do"):
        measure_quality(Built(), EngineConfig(), long, [Precision("int4")], 256, Watch())


def test_the_table_has_a_line_for_each_precision() -> None:
    result = measure(Built(), "float32,int4")
    lines = quality_table(replace(result, model="toy")).splitlines()
    assert lines[0].startswith("toy: 88 positions in 4 pieces of at most 40 tokens")
    assert [line.split()[:2] for line in lines[-2:]] == [["float32", "float64"], ["int4", "float64"]]


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model_loses_more_with_fewer_bits() -> None:
    from specdec.eval.pieces import cut

    text = "The river rose in the night, and by morning the lower fields were under water. " * 4

    def build(config: EngineConfig) -> Engine:
        return Engine.from_config(replace(config, num_threads=1))

    precisions = parse_precisions("float32,bfloat16,int8,int4,gguf")
    result = measure_quality(
        build, EngineConfig(), lambda tokenizer: cut([text], tokenizer, 64, 60), precisions, 64, Watch()
    )
    assert result.failures == ()
    kl = {quality.precision: quality.mean_kl.value for quality in result.qualities}
    assert kl["float32"] < 1e-6 < kl["bfloat16"]
    # The file has 4 bits a weight: rounding those to 8 may lose more than to 4, which finds the same codes again.
    assert all(kl["bfloat16"] < kl[name] < 0.1 for name in ("int8", "int4", "gguf"))
    sizes = {quality.precision: quality.weight_bytes for quality in result.qualities}
    assert sizes["float32"] > sizes["bfloat16"] > sizes["int8"] > sizes["int4"]
