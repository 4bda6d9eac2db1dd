"""How a YAML file, options and prompts' own wishes become one engine configuration."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from specdec.cli.configure import read_config
from specdec.cli.parsing import parse_yaml
from specdec.config import EngineConfig, SpeculativeConfig
from specdec.types import SpeculationParams
from tests.cli.fake import FakeEngine, generate, invoke

CONFIGS = Path(__file__).parents[2] / "configs"


def config_of(*args: str, input: str | None = None) -> EngineConfig:
    engine = generate(*args, input=input).engine
    assert engine is not None
    assert engine.config is not None
    return engine.config


def refused(*args: str, input: str | None = None) -> str:
    result = invoke("generate", *args, input=input)
    assert result.exit_code == 2
    assert result.engine is None, "refused only after the model was loaded"
    return result.error


def write(folder: Path, text: str) -> str:
    file = folder / "engine.yaml"
    file.write_text(text)
    return str(file)


def test_the_defaults() -> None:
    assert config_of("a") == EngineConfig(speculative=(SpeculativeConfig("auto", 16),))


def test_auto_takes_what_fits_and_a_length_that_is_stated() -> None:
    assert config_of("a", "-k5").speculative == (SpeculativeConfig("auto", 5),)
    small = config_of("a", "--max-num-batched-tokens=9", "--max-num-seqs=2")
    assert small.speculative == (SpeculativeConfig("auto", 8),)
    for given in ({"method": "auto"}, {"method": "auto", "proposers": ["ngram"]}):
        (entry,) = config_of("a", "--speculative-config", json.dumps(given)).speculative
        assert (entry.method, entry.num_speculative_tokens) == ("auto", 16)
    assert "names one twice" in refused(
        "a", "--speculative-config", '{"method": "auto", "proposers": ["ngram", "ngram"]}'
    )


def test_with_auto_a_draft_model_is_one_more_to_choose_from() -> None:
    entries = config_of("a", "--proposer=auto", "--draft-layers=3").speculative
    assert entries == (SpeculativeConfig("auto", 16), SpeculativeConfig("draft", 4, {"num_draft_layers": 3}))


def test_every_engine_option_reaches_the_configuration() -> None:
    assert config_of(
        "a", "--model=m", "--dtype=float64", "--max-model-len=99", "--max-num-seqs=3", "--max-num-batched-tokens=77",
        "--block-size=8", "--kv-cache-tokens=640", "--no-prefix-caching", "--verifier=coupled", "-k", "7",
    ) == EngineConfig(
        model="m", dtype="float64", max_model_len=99, max_num_seqs=3, max_num_batched_tokens=77, block_size=8,
        kv_cache_tokens=640, enable_prefix_caching=False, verifier="coupled",
        speculative=(SpeculativeConfig("auto", 7),),
    )  # fmt: skip


def test_proposer_none_is_plain_decoding() -> None:
    assert config_of("a", "--proposer=none").speculative == ()


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "model: other\nblock_size: 32\nmax_num_seqs: 5\n"
        "speculative_config: {method: ngram, num_speculative_tokens: 6, prompt_lookup_max: 3}",
    )
    settings = {"prompt_lookup_max": 3}
    config = config_of("a", "--config", file, "--max-num-seqs=64")
    assert (config.model, config.block_size, config.max_num_seqs) == ("other", 32, 64)
    assert config.speculative == (SpeculativeConfig("ngram", 6, settings),)
    assert config_of("a", "--config", file, "-k2").speculative == (SpeculativeConfig("ngram", 2, settings),)
    assert config_of("a", "--config", file, "--proposer=ngram").speculative == config.speculative
    plain = config_of("a", "--config", file, "--proposer=none").speculative
    assert [entry.method for entry in plain] == ["none", "ngram"]
    replaced = config_of("a", "--config", file, "--speculative-config", '{"method": "ngram"}').speculative
    assert replaced == (SpeculativeConfig("ngram", 4),)


def test_a_file_without_proposers_decodes_plainly(tmp_path: Path) -> None:
    file = write(tmp_path, "block_size: 32")
    assert config_of("a", "--config", file).speculative == ()
    assert config_of("a", "--config", file, "--proposer=ngram").speculative == (SpeculativeConfig("ngram", 4),)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_the_ready_files_are_valid(path: Path) -> None:
    config = config_of("a", "--config", str(path))
    assert config == read_config(path)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_the_ready_files_write_everything_out(path: Path) -> None:
    written = set(parse_yaml(path.read_bytes()))
    assert written == {field.name for field in fields(EngineConfig)} - {"speculative"} | {"speculative_config"}


def test_no_quantization_is_null_or_none(tmp_path: Path) -> None:
    for value in ("null", "none"):
        assert config_of("a", "--config", write(tmp_path, f"quantization: {value}")).quantization == "none"
    assert "unknown quantization ''" in refused("a", "--config", write(tmp_path, "quantization: ''"))
    assert EngineConfig.from_mapping({"quantization": None}) == EngineConfig()


def test_the_default_pairing_is_what_no_option_does() -> None:
    written = read_config(CONFIGS / "smollm2-135m.yaml")
    default = config_of("a")
    assert EngineConfig(**{**vars(written), "speculative": default.speculative}) == default
    assert written.speculative[0].num_speculative_tokens == default.speculative[0].num_speculative_tokens


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle: x", "unknown config key 'modle'; did you mean 'model'?"),
        ("block_size: -1", "block_size must be a positive integer; got -1"),
        ("block_size: [", "not valid YAML"),
        ("- a", "expected config keys and their values"),
        ("", "expected config keys and their values"),
        ("1: 2", "expected config keys and their values"),
        ("speculative_config: {num_speculative_tokens: 3}", "needs a method"),
        ("speculative_config: {method: ngam}", "unknown proposer 'ngam'; did you mean 'ngram'?"),
        ("speculative_config: {method: ngram, prompt_lookup_mx: 3}", "did you mean 'prompt_lookup_max'?"),
        ("[" * 5000, "not valid YAML: nested too deeply"),
        ("seed: !!int ''", "not valid YAML"),
        ("seed: !!bool maybe", "not valid YAML"),
        ("seed: !!timestamp noon", "not valid YAML"),
        ("seed: " + "9" * 5000, "Exceeds the limit (4300 digits)"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    error = refused("a", "--config", file)
    assert error.startswith(f"{file}: ")
    assert message in error
    assert "set_int_max_str_digits" not in error


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--proposer=ngam"], "unknown proposer 'ngam'; did you mean 'ngram'?"),
        (["--verifier=couple"], "unknown verifier 'couple'; did you mean 'coupled'?"),
        (["--dtype=float31"], "unknown dtype 'float31'; did you mean 'float32'?"),
        (["-k", "33"], "num_speculative_tokens must be an integer between 0 and 32; got 33"),
        (["-k", "31", "--max-num-batched-tokens=16", "--max-num-seqs=1"], "do not fit max_num_batched_tokens (16)"),
        (["--kv-cache-tokens=16"], "must hold at least two blocks"),
        (["--temperature=-1"], "temperature must be a number at least 0; got -1.0"),
        (["--max-tokens=0"], "max_tokens must be an integer, at least 1; got 0"),
        (["--stop="], "stop must be a non-empty string"),
        (["--n=2"], "n must be 1 when temperature is 0"),
        (["--verifier=greedy", "--temperature=1"], "the verifier 'greedy' needs temperature 0, got 1"),
        (["--raw", "--system=s"], "--raw and --system contradict each other"),
        (["--json", "--color"], "--json and --color contradict each other"),
        (["--quiet", "-v"], "--quiet and -v contradict each other"),
        (["--speculative-config={"], "--speculative-config: not valid JSON"),
        (["--speculative-config=" + "[" * 30_000], "--speculative-config: not valid JSON: nested too deeply"),
        (["--speculative-config=" + "[" * 900 + "]" * 900], "speculative_config must be a mapping"),
        (["--speculative-config=[\n1,]"], "--speculative-config: not valid JSON: Expecting value at line 2, column 3"),
        (["--speculative-config=" + "9" * 5000], "--speculative-config: Exceeds the limit (4300 digits)"),
        (["--speculative-config=3"], "speculative_config must be a mapping"),
        (["--speculative-config=[]"], "names no proposer"),
        (["--speculative-config={}"], "needs a method"),
        (['--speculative-config={"method": "ngram", "prompt_lookup_mx": 3}'], "did you mean 'prompt_lookup_max'?"),
        (['--speculative-config=[{"method": "ngram"}, {"method": "ngram"}]'], "names the proposer 'ngram' twice"),
        (['--speculative-config={"method": "ngram"}', "--proposer=none"], "contradicts --speculative-config"),
        (['--speculative-config={"method": "ngram", "num_speculative_tokens": 3}', "-k5"], "which says 3"),
        (
            ['--speculative-config={"method": "ngram", "rejection_sample_method": "standard"}', "--verifier=coupled"],
            "--verifier coupled contradicts --speculative-config, which says rejection",
        ),
        (["--config=nowhere.yaml"], "'nowhere.yaml' does not exist"),
        (["--top-k=x"], "'x' is not a valid integer"),
        (["--tempratur=1"], "Did you mean '--temperature'?"),
    ],
)
def test_bad_options_are_refused_in_one_line(args: list[str], message: str) -> None:
    assert message in refused("a", *args)


def test_a_speculative_config_and_options_that_agree() -> None:
    entry = {"method": "ngram", "prompt_lookup_max": 5, "rejection_sample_method": "standard"}
    config = config_of("a", "--speculative-config", json.dumps(entry), "-k6", "--proposer=ngram")
    assert config.speculative == (SpeculativeConfig("ngram", 6, {"prompt_lookup_max": 5}),)
    assert config.verifier == "rejection"
    both = config_of("a", "--speculative-config", json.dumps([entry, {"method": "none"}]), "--proposer=none")
    assert [entry.method for entry in both.speculative] == ["none", "ngram"]


def speculation(*args: str, lines: list[dict[str, object]]) -> tuple[EngineConfig, list[SpeculationParams]]:
    engine = FakeEngine()
    generate(*args, "--prompts-file=-", input="\n".join(map(json.dumps, lines)), engine=engine)
    assert engine.config is not None
    return engine.config, [added["speculation"] for added in engine.added]


def test_lines_bring_their_own_proposers_and_lengths() -> None:
    config, asked = speculation(
        "--proposer=none",
        "-k3",
        lines=[
            {"prompt": "a"},
            {"prompt": "b", "proposer": "ngram"},
            {"prompt": "c", "proposer": "ngram", "num_speculative_tokens": 9},
            {"prompt": "d", "num_speculative_tokens": 9},
        ],
    )
    assert [entry.method for entry in config.speculative] == ["none", "ngram"]
    assert config.speculative[1].num_speculative_tokens == 9
    assert asked == [
        SpeculationParams("none", 0),
        SpeculationParams("ngram", 3),
        SpeculationParams("ngram", 9),
        SpeculationParams("none", 0),
    ]


def test_a_longer_line_leaves_the_others_their_length() -> None:
    lines = [{"prompt": "a"}, {"prompt": "b", "num_speculative_tokens": 8}, {"prompt": "c", "proposer": "none"}]
    config, asked = speculation("--proposer=ngram", lines=lines)
    assert config.speculative == (SpeculativeConfig("ngram", 8), SpeculativeConfig("none", 0))
    assert asked == [SpeculationParams("ngram", 4), SpeculationParams("ngram", 8), SpeculationParams("none", 0)]


def test_a_line_whose_draft_does_not_fit_a_step_is_refused() -> None:
    line = json.dumps({"prompt": "a", "num_speculative_tokens": 20})
    args = ("--proposer=ngram", "--prompts-file=-", "--max-num-batched-tokens=16", "--max-num-seqs=1")
    assert "(20) and the token before them do not fit" in refused(*args, input=line)


@pytest.mark.parametrize(
    ("option", "settings"), [("--draft-model=small", {"model": "small"}), ("--draft-layers=3", {"num_draft_layers": 3})]
)
def test_a_draft_models_options_choose_the_proposer_and_win_over_the_file(
    option: str, settings: dict[str, object], tmp_path: Path
) -> None:
    assert config_of("a", option).speculative == (SpeculativeConfig("draft", 4, settings),)
    assert config_of("a", "--proposer=draft", option, "-k2").speculative == (SpeculativeConfig("draft", 2, settings),)
    text = "speculative_config: {method: draft, num_speculative_tokens: 6, num_draft_layers: 9, %s}"
    file = write(tmp_path, text % "draft_sample_method: greedy")
    kept = {"draft_sample_method": "greedy"}
    assert config_of("a", "--config", file, option).speculative == (SpeculativeConfig("draft", 6, kept | settings),)
    assert config_of("a", "--config", file).speculative[0].settings == kept | {"num_draft_layers": 9}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--proposer=draft"], "needs one of model (a draft model: --draft-model) and num_draft_layers"),
        (["--draft-layers=0"], "num_draft_layers must be a positive integer; got 0"),
        (["--draft-layers=2", "--tree-nodes=9"], "--tree-nodes is of a tree, and draft drafts a chain; add --tree"),
        (["--tree=breadth"], "--tree is of the proposers draft, eagle, eagle3, medusa, recycling; name one of them"),
        (
            ["--proposer=suffix", "--tree=breadth"],
            "--tree contradicts --proposer suffix: it is of the proposers draft,",
        ),
        (
            ["--proposer=eagle", "--draft-layers=2"],
            "--draft-layers contradicts --proposer eagle: it is of the proposer",
        ),
        (["--proposer=eagle", "--draft-model="], "a draft head's model must be its directory or file (--draft-model)"),
        (
            ['--speculative-config={"method": "eagle", "model": "m", "expected_acceptance": [2]}'],
            "expected_acceptance must be a list of shares, from 0 to 1 each; got [2]",
        ),
        (["--draft-layers=2", "--draft-model=m"], "--draft-model and --draft-layers contradict each other"),
        (["--draft-layers=2", "--proposer=ngram"], "--draft-layers contradicts --proposer ngram"),
        (["--draft-model=m", '--speculative-config={"method": "ngram"}'], "contradicts --speculative-config"),
    ],
)
def test_a_draft_models_options_are_checked_before_any_model_work(options: list[str], message: str) -> None:
    assert message in refused("a", *options)


@pytest.mark.parametrize("proposer", ["eagle", "eagle3", "medusa"])
def test_a_head_need_not_be_named(proposer: str) -> None:
    """What is built in for the model is for the engine to find."""
    assert config_of("a", f"--proposer={proposer}").speculative == (SpeculativeConfig(proposer, 4),)


EXAMPLE = "phrases_proposer:PhrasesProposer"
PHRASES = {"method": EXAMPLE, "phrases": ["once upon a time"]}


def test_a_proposer_from_outside_is_named_by_its_path(tmp_path: Path) -> None:
    listed = (SpeculativeConfig(EXAMPLE, 4, {"phrases": ["once upon a time"]}),)
    assert config_of("a", "--speculative-config", json.dumps(PHRASES)).speculative == listed
    file = write(tmp_path, f"speculative_config: {json.dumps(PHRASES)}")
    assert config_of("a", "--config", file).speculative == listed
    assert config_of("a", "--config", file, "--proposer", EXAMPLE).speculative == listed
    both = config_of("a", "--config", file, "--proposer=ngram").speculative
    assert both == (SpeculativeConfig("ngram", 4), *listed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--proposer", EXAMPLE], f"the proposer '{EXAMPLE}' needs the key 'phrases' in speculative_config"),
        (["--proposer=nowhere:Class"], "the proposer 'nowhere:Class': there is no module 'nowhere'"),
        (["--proposer=phrases_proposer:"], "the proposer 'phrases_proposer:' is no path to a class"),
        (["--proposer=phrases_proposer.Class"], "a class is named 'phrases_proposer:Class'"),
        (["--speculative-config", json.dumps({**PHRASES, "phrase": "x"})], "'phrase'; did you mean 'phrases'?"),
    ],
)
def test_a_wrong_proposer_from_outside_is_one_line_before_any_model_work(options: list[str], message: str) -> None:
    assert message in refused("a", *options)


def test_a_line_may_name_a_proposer_from_outside_that_is_loaded() -> None:
    lines: list[dict[str, object]] = [{"prompt": "a"}, {"prompt": "b", "proposer": EXAMPLE}, {"prompt": "c"}]
    pair = json.dumps([{"method": "ngram"}, PHRASES])
    config, asked = speculation("--speculative-config", pair, lines=lines)
    assert [entry.method for entry in config.speculative] == ["ngram", EXAMPLE]
    assert [each.proposer for each in asked] == ["ngram", EXAMPLE, "ngram"]


def test_a_file_of_prompts_loads_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rogue.py").write_text("raise SystemExit('loaded')")
    info = tmp_path / "rogue-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rogue\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[specdec.proposers]\nrogue = rogue:Class\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("rogue:Class", "rogue"):
        line = json.dumps({"prompt": "a", "proposer": name})
        assert refused("--prompts-file=-", input=line) == (
            f"standard input, line 1: the proposer '{name}' is from outside and not loaded; name it in --proposer, "
            "--speculative-config or --config too"
        )


def test_a_line_whose_proposer_lacks_a_setting_is_named() -> None:
    lines = '{"prompt": "a"}\n{"prompt": "b", "proposer": "draft"}'
    assert refused("--prompts-file=-", input=lines).startswith("standard input, line 2: the proposer 'draft' needs one")
