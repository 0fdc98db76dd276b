"""Overlay results of many runs, seeds and sweeps: a figure, tables, and an interactive page.

    python scripts/compare.py runs/demo runs/wide                  # the sweep that both have
    python scripts/compare.py runs/demo-s* sweep=demo              # this sweep of several seeds
    python scripts/compare.py runs/demo/evals/demo runs/wide/evals/demo output=figures/wide

Runs that differ in nothing but their seed are pooled: one curve, its interval over documents and
seeds. Leaves comparison.png, .html, .md and .csv in the folder `output`.
"""

from pathlib import Path

from rope_jax import cli
from rope_jax.config.comparison import CompareConfig
from rope_jax.config.load import dump, load
from rope_jax.errors import UserError


def main(argv: list[str]) -> None:
    parser = cli.parser(
        "compare.py RUN [RUN ...] [key=value ...] [--print-config]",
        "Overlay results of many runs, seeds and sweeps: a figure, tables and an interactive page. "
        "Keys:",
        CompareConfig,
    )
    about = "a run that eval_ppl.py has swept, or one sweep's folder in it"
    parser.add_argument("runs", metavar="RUN", nargs="+", help=about)
    arguments = cli.parse(parser, argv)
    config = load(CompareConfig, None, arguments.overrides)
    if arguments.print_config:
        print(dump(config), end="")
        return
    # matplotlib and scipy take seconds to import: help and config errors answer before it
    from rope_jax.comparison.comparable import mismatches, refuse
    from rope_jax.comparison.curves import compare
    from rope_jax.comparison.files import leave
    from rope_jax.comparison.report import show
    from rope_jax.comparison.sweeps import find, read
    from rope_jax.console import plain_console

    sweeps = [read(folder) for folder in find(list(map(Path, arguments.runs)), config.sweep)]
    found = mismatches(sweeps)
    if not config.force:
        refuse(found)
    output = Path(config.output)
    if output.exists() and not output.is_dir():
        raise UserError(f"output: {output} is a file; name a folder")
    console = plain_console()
    with console.status("resampling documents"):
        comparison = compare(sweeps, found, config)
    leave(output, comparison)
    show(console, comparison)
    names = ", ".join(f"{output / 'comparison'}{end}" for end in (".png", ".html", ".md", ".csv"))
    console.print(names, soft_wrap=True)


if __name__ == "__main__":
    cli.run(main)
