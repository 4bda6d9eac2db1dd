"""A failing proposer's warnings at the terminal: one line each, once per proposer and kind, and never inside a text."""

from __future__ import annotations

import warnings

import pytest
from click.testing import CliRunner

from specdec.cli import main
from specdec.cli.warned import proposer_warnings
from specdec.config import EngineConfig
from specdec.types import ProposerWarning
from tests.cli import fake


def failing(step: int) -> None:
    """Fails in every step, each time with another number, and in another way from the third on."""
    warnings.warn(ProposerWarning(f"proposer 'a' failed: step {step}", ("a", "ValueError")), stacklevel=1)
    if step > 2:
        warnings.warn(ProposerWarning(f"proposer 'a' failed: odd {step}", ("a", "KeyError")), stacklevel=1)


LINES = ["specdec: warning: proposer 'a' failed: step 1", "specdec: warning: proposer 'a' failed: odd 3"]


def together(*args: str) -> str:
    """What `specdec generate` writes to both streams, as a terminal shows it."""

    def build(config: EngineConfig, progress: object) -> fake.FakeEngine:
        return fake.FakeEngine(before_step=failing)

    with CliRunner().isolation() as (_, _, both), pytest.raises(SystemExit):
        main(["generate", "--raw", *args], build_engine=build)
    return both.getvalue().decode()


def test_streamed_text_stays_whole_and_each_kind_is_said_once_after_it() -> None:
    lines = together("Why is it so?").splitlines()
    assert lines[:3] == ["re: Why is it so?", *LINES]
    assert lines[3].startswith("specdec: ")
    assert len(lines) == 4


def test_between_whole_answers_they_come_at_once() -> None:
    lines = together("Why is it so?", "Is it?").splitlines()
    assert lines[:2] == LINES
    assert sum("warning" in line for line in lines) == 2


@pytest.mark.parametrize("hold", [False, True])
def test_what_was_said_while_the_engine_was_built_is_not_said_again(
    hold: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with proposer_warnings():
        failing(1)
        with proposer_warnings(hold=hold):
            failing(3)
        failing(4)
    assert capsys.readouterr().err.splitlines() == [LINES[0], LINES[1]]
    with proposer_warnings():
        failing(1)
    assert capsys.readouterr().err.splitlines() == [LINES[0]], "another run has it to itself"


@pytest.mark.parametrize("hold", [False, True])
def test_other_warnings_are_as_ever(hold: bool, recwarn: pytest.WarningsRecorder) -> None:
    with proposer_warnings(hold=hold):
        warnings.simplefilter("always", UserWarning)
        warnings.warn("another matter", stacklevel=1)
    assert [str(warning.message) for warning in recwarn] == ["another matter"]


def test_what_was_held_is_said_though_the_run_breaks_off(capsys: pytest.CaptureFixture[str]) -> None:
    def breaks_off() -> None:
        with proposer_warnings(hold=True):
            failing(1)
            assert capsys.readouterr().err == ""
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        breaks_off()
    assert capsys.readouterr().err == f"{LINES[0]}\n"
