"""`specdec models`: the models that have a short name, and the draft heads that come with the package."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from specdec.cli.errors import bad_input

if TYPE_CHECKING:
    from specdec.models.built_in import HeadShelf


@click.command(
    short_help="List the models that have a short name, and the built-in draft heads.",
    help="List the aliases that --model takes, what each weighs, its licence, and where it is cached. A model that is "
    "not cached is fetched when it is first used. Below them are the draft heads that are built in: eagle and its like "
    "draft with them where --draft-model names no other, and so does auto.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON list of objects instead of the tables.")
def models(as_json: bool) -> None:
    from specdec.models.built_in import SHELF

    with bad_input():
        found, heads = list_models(), list_heads(SHELF)
    if as_json:
        click.echo(json.dumps([*found, *heads]))
        return
    _print_table(("ALIAS", "SIZE", "LICENCE", "CACHED", "DESCRIPTION"), map(_model_row, found))
    click.echo()
    _print_table(("HEAD", "FOR", "SIZE", "LICENCE", "INSTALLED", "DESCRIPTION"), map(_head_row, heads))


def list_models() -> list[dict[str, Any]]:
    """Every alias."""
    from specdec.models.hub import list_aliases

    return [
        {
            "kind": "model",
            "name": alias.name,
            "description": alias.description,
            "licence": alias.licence,
            "size": alias.size,
            "source": f"PyPI, {alias.package}",
            "path": str(alias.path),
            "cached": cached is not None,
        }
        for alias, cached in list_aliases()
    ]


def list_heads(shelf: HeadShelf) -> list[dict[str, Any]]:
    """Every built-in head; the size of one that is not installed is null."""
    return [
        {
            "kind": head.kind,
            "name": head.name,
            "target": head.target,
            "description": head.description,
            "licence": head.licence,
            "size": size,
            "source": "specdec",
            "path": str(shelf.path(head)),
            "cached": size is not None,
        }
        for head, size in shelf.listed()
    ]


def _model_row(model: dict[str, Any]) -> tuple[str, ...]:
    return model["name"], _megabytes(model["size"]), model["licence"], _place(model), model["description"]


def _head_row(head: dict[str, Any]) -> tuple[str, ...]:
    size = _megabytes(head["size"])
    return head["name"], head["target"], size, head["licence"], _place(head), head["description"]


def _megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.0f} MB"


def _place(entry: dict[str, Any]) -> str:
    return str(entry["path"]) if entry["cached"] else "no"


def _print_table(heading: Sequence[str], body: Iterable[Sequence[str]]) -> None:
    rows = [heading, *body]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
