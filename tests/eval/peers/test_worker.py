"""Peak memory over a process and its children, from a made-up /proc."""

from __future__ import annotations

from pathlib import Path

from specdec.eval.peers.worker import peak_memory


def write(proc: Path, pid: int, kilobytes: int | None, children: str) -> None:
    (proc / str(pid) / "task" / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "task" / str(pid) / "children").write_text(children)
    own = "" if kilobytes is None else f"VmHWM:\t  {kilobytes} kB\n"
    (proc / str(pid) / "status").write_text(f"Name:\tx\nVmPeak:\t 999 kB\n{own}Threads:\t1\n")


def test_children_and_theirs_are_counted(tmp_path: Path) -> None:
    write(tmp_path, 1, 100, "2 3 ")
    write(tmp_path, 2, 10, "4 ")
    write(tmp_path, 4, 1, "")
    assert peak_memory(1, tmp_path) == 1024 * 111, "3 is gone already"


def test_it_is_unknown_where_the_system_does_not_tell(tmp_path: Path) -> None:
    write(tmp_path, 1, None, "")
    assert peak_memory(1, tmp_path) is None
    assert peak_memory(2, tmp_path) is None
