"""Standard streams that are closed or full: one clear line where there is a place for it, and never a lost answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = (
    "import sys\nfrom tests.cli.fake import FakeEngine\nfrom specdec.cli import main\n"
    "def build(config, progress):\n"
    "    if progress: progress('loading')\n"
    "    return FakeEngine()\n"
    "main(sys.argv[1:], build_engine=build)"
)
COMMANDS = [
    ["generate", "--raw", "hello"],
    ["generate", "--raw", "--json", "hello"],
    ["generate", "--raw", "hello", "two"],
    ["generate", "--help"],
    ["models"],
    ["--version"],
]


def shell(redirection: str, args: list[str], code: str = CODE) -> tuple[int, str, str]:
    """`specdec ARGS REDIRECTION`: exit code, standard output, standard error."""
    command = ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_a_full_disk_is_one_line(args: list[str]) -> None:
    code, _, error = shell(">/dev/full", args)
    assert (code, error.splitlines()[-1]) == (1, "specdec: error: cannot write the output: No space left on device")
    assert "Traceback" not in error


@pytest.mark.parametrize("args", COMMANDS[:2], ids=" ".join)
def test_a_closed_standard_output_is_refused_before_any_work(args: list[str]) -> None:
    error = "specdec: error: cannot write the output: standard output is closed\n"
    assert shell(">&-", args) == (1, "", error)
    assert shell(">&- 2>&-", args) == (1, "", "")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize("options", [[], ["-v"], ["--color"]], ids=str)
def test_a_dead_standard_error_costs_no_answer(redirection: str, options: list[str]) -> None:
    plain = shell("", ["generate", "--raw", "hello", *options])
    assert plain[0] == 0
    assert "o" in plain[1]
    assert shell(redirection, ["generate", "--raw", "hello", *options]) == (0, plain[1], "")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(("args", "code"), [([], 2), (["generate"], 2), (["generate", "--raw", "fail"], 1)])
def test_a_dead_standard_error_leaves_the_exit_code(redirection: str, args: list[str], code: int) -> None:
    assert shell(redirection, args)[0] == code


def test_a_closed_standard_input_is_bad_input() -> None:
    code, output, error = shell("<&-", ["generate", "--prompts-file=-"])
    assert (code, output) == (2, "")
    assert error == "specdec: error: standard input is closed; give --prompts-file a file\n"


def test_ctrl_c_while_modules_are_read_is_no_fault() -> None:
    code = (
        "import sys\nfrom specdec.cli import main\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'specdec.cli.models': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "main(sys.argv[1:])"
    )
    assert shell("", ["models"], code) == (130, "", "specdec: interrupted\n")
