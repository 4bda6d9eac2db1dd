"""`specdec models`: the built-in heads that are installed, and those that are not."""

from __future__ import annotations

from pathlib import Path

from specdec.cli.models import list_heads
from specdec.models.built_in import HeadShelf
from tests.models.test_built_in import head, install


def test_heads_there_and_not_there(tmp_path: Path) -> None:
    shelf = HeadShelf(tmp_path, (head(), head("second")))
    install(shelf, head(), size=1000)
    assert [(each["name"], each["size"], each["cached"], each["path"]) for each in list_heads(shelf)] == [
        ("tiny-eagle3", 1004, True, str(tmp_path / "tiny-eagle3")),
        ("second", None, False, str(tmp_path / "second")),
    ]
