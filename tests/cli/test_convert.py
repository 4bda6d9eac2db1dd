"""`specdec convert`: what it writes, what it says, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec.cli import convert as command
from specdec.train.formats import convert, precision
from tests.cli.fake import invoke
from tests.models.head_writing import eagle3_tensors, eagle_tensors, write_eagle, write_eagle3
from tests.train.formats.test_convert import assert_same


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_eagle3(tmp_path / "source", eagle3_tensors())


def test_a_head_in_another_layout(source: Path, tmp_path: Path) -> None:
    result = invoke("convert", str(source), str(tmp_path / "copy"), "--to=speculators")
    size = sum(path.stat().st_size for path in (tmp_path / "copy").iterdir())
    assert (result.exit_code, result.stdout) == (0, "")
    said = f"specdec: wrote {tmp_path / 'copy'}: speculators, numbers as they were, {size / 1e6:.1f} MB\n"
    assert result.stderr == said
    assert_same(source, tmp_path / "copy")


def test_other_numbers_and_nothing_said(source: Path, tmp_path: Path) -> None:
    result = invoke("convert", str(source), str(tmp_path / "copy"), "--to=eagle3", "--dtype=int8", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert "int-quantized" in (tmp_path / "copy" / "config.json").read_text()


def test_a_head_that_is_there_stays_unless_forced(source: Path, tmp_path: Path) -> None:
    there = write_eagle(tmp_path / "there", eagle_tensors())
    result = invoke("convert", str(source), str(there), "--to=eagle3")
    assert result.exit_code == 2
    assert f"{there} holds a head already; name another directory" in result.error
    assert (there / "pytorch_model.bin").exists()
    assert invoke("convert", str(source), str(there), "--to=eagle3", "--force").exit_code == 0
    assert_same(source, there)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--to=eagle"], "the layout eagle is not for heads of kind eagle3, as this one is; for these: eagle3"),
        (["--to=medusa"], "the layout medusa is not for heads of kind eagle3"),
        (["--to=eagel3"], "unknown layout 'eagel3'; did you mean 'eagle3'?"),
        (["--to=eagle3", "--dtype=int4"], "unknown dtype of a head 'int4'; did you mean 'int8'?"),
        ([], "Missing option '--to'"),
    ],
)
def test_what_is_refused(args: list[str], said: str, source: Path, tmp_path: Path) -> None:
    result = invoke("convert", str(source), str(tmp_path / "copy"), *args)
    assert result.exit_code == 2
    assert said in result.error
    assert not (tmp_path / "copy").exists()


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    result = invoke("convert", str(tmp_path / "none"), str(tmp_path / "copy"), "--to=eagle3")
    assert (result.exit_code, result.error) == (
        2,
        f"there is no draft head at '{tmp_path / 'none'}': no such directory or file",
    )


def test_the_names_of_the_help_are_those_of_the_code() -> None:
    """They are written twice, for the help must not wait for torch."""
    assert command.LAYOUTS == convert.LAYOUTS
    assert command.DTYPES == precision.DTYPES
