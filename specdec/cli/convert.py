"""`specdec convert`: a draft head in another layout, or in other numbers."""

from __future__ import annotations

from pathlib import Path

import click

from specdec.cli.errors import bad_input, say

LAYOUTS = ("eagle", "eagle3", "speculators", "medusa", "medusa-pt")
DTYPES = ("float32", "bfloat16", "float16", "int8")


@click.command(
    short_help="Write a draft head in another layout or precision.",
    help="Write the draft head SOURCE, in any layout that --draft-model takes (a directory, a file, a hub name or the "
    "name of a built-in head), to the directory TARGET. What a layout cannot express is refused.",
)
@click.argument("source")
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "layout",
    required=True,
    metavar="LAYOUT",
    help="eagle: of the authors of EAGLE-1 and 2; eagle3: of EAGLE-3's; speculators: of that library, for both, which "
    "vLLM reads; medusa: of Medusa's authors, in safetensors; medusa-pt: the same in torch's own format. No default.",
)
@click.option(
    "--dtype",
    metavar="NAME",
    help="float32, bfloat16, float16 or int8: matrices as codes, with a float16 scale for each 32 weights of a row. "
    "[default: as they are]",
)
@click.option("--force", is_flag=True, help="Replace a head that TARGET holds, with all that lies beside it.")
@click.option("--quiet", is_flag=True, help="Say nothing where all goes well.")
def convert(source: str, target: Path, layout: str, dtype: str | None, force: bool, quiet: bool) -> None:
    from specdec.config import unknown_name

    with bad_input():
        # Names are checked before torch is waited for.
        if layout not in LAYOUTS:
            raise ValueError(unknown_name("layout", layout, LAYOUTS))
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(unknown_name("dtype of a head", dtype, DTYPES))
        from specdec.engine.draft_heads import find_head
        from specdec.models.built_in import SHELF
        from specdec.train.formats.convert import convert as write

        path = SHELF.named(source) or find_head(source, None if quiet else say)
        done = write(path, target, layout=layout, dtype=dtype, overwrite=force)
    if not quiet:
        say(f"wrote {target}: {layout}, {dtype or 'numbers as they were'}, {done.num_bytes / 1e6:.1f} MB")
