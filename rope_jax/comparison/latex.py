"""comparison.tex: the tables of a comparison for a paper, without its differences."""

from rope_jax.comparison.cells import EMPTY, QUANTITIES, best_at, cell
from rope_jax.comparison.curves import Comparison
from rope_jax.comparison.differences import describe_settings
from rope_jax.comparison.groups import MARK
from rope_jax.comparison.report import format_usable, points_of
from rope_jax.runs.latex import escape_latex, format_tabular, latex_value


def format_latex(comparison: Comparison) -> str:
    """Return one tabular environment per protocol, with a rule between groups of runs.

    Each is for a table environment in a paper; the comments above it say what a caption has to.
    """
    curves = [curve for curve in comparison.curves if curve.is_newest]
    protocols = dict.fromkeys(point.protocol for curve in curves for point in curve.points)
    return "\n".join(_format_protocol(protocol, comparison) for protocol in protocols)


def _format_protocol(protocol: str, comparison: Comparison) -> str:
    curves = [curve for curve in comparison.curves if curve.is_newest]
    plotted = points_of(protocol, curves)
    lengths = sorted({length for one in plotted for length in one.points})
    has_usable = protocol == "same_tokens" and any(one.curve.usable for one in plotted)
    has_settings = any(one.curve.group.settings for one in plotted)
    best = best_at([one.curve for one in plotted], protocol, comparison.show)
    blocks: list[list[list[str]]] = []
    for group in dict.fromkeys(one.curve.group for one in plotted):
        names = [escape_latex(group.label)]
        if has_settings:
            names.append(escape_latex(describe_settings(group.settings, briefly=True)))
        block = []
        for one in plotted:
            if one.curve.group is not group:
                continue
            line = [*names, escape_latex(one.curve.name)]
            for length in lengths:
                point = one.points.get(length)
                shown = EMPTY if point is None else cell(point, comparison.show)
                is_best = shown.value == best.get(length) and not group.marked
                line.append(latex_value(shown.value, shown.interval, is_best=is_best))
            block.append([*line, *[escape_latex(format_usable(one.curve))] * has_usable])
            names = [""] * len(names)  # written once
        blocks.append(block)
    notes = [
        protocol,
        f"{QUANTITIES[comparison.show].capitalize()} by length, ± half of the 95% interval. "
        "The best of each column is bold.",
        *([f"{MARK} cannot be compared."] if any(g.marked for g in comparison.groups) else []),
        r"Needs \usepackage{booktabs}.",
    ]
    heading = ["runs", *["differs in"] * has_settings, "scaling", *(f"{n:,}" for n in lengths)]
    heading += ["usable"] * has_usable
    return format_tabular(heading, blocks, left=2 + has_settings, notes=notes)
