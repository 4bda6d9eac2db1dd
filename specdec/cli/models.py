"""`specdec models`: the models that have a short name, and where each is kept."""

from __future__ import annotations

import json

import click

from specdec.cli.errors import bad_input


@click.command(
    short_help="List the models that have a short name.",
    help="List the aliases that --model takes, what each weighs, its licence, and where it is cached. A model that is "
    "not cached is fetched when it is first used.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON list of objects instead of the table.")
def models(as_json: bool) -> None:
    from specdec.models.hub import list_aliases

    with bad_input():
        found = [
            {
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
    if as_json:
        click.echo(json.dumps(found))
        return
    rows = [("ALIAS", "SIZE", "LICENCE", "CACHED", "DESCRIPTION")]
    for model in found:
        size = f"{float(str(model['size'])) / 1e6:.0f} MB"
        where = str(model["path"]) if model["cached"] else "no"
        rows.append((str(model["name"]), size, str(model["licence"]), where, str(model["description"])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
