"""Labels do not touch, folded text keeps what belongs together, and curves can be told apart."""

import itertools

import pytest
from matplotlib.figure import Figure

from rope_jax.plots.panels import label_powers, scale_lengths
from rope_jax.plots.style import OKABE_ITO, PALETTE, assign_styles, figure_style
from rope_jax.positions.maps import MAPS
from rope_jax.rope import STRATEGIES


def test_tick_labels_without_room_are_left_out_but_not_the_last():
    for width, labels in (
        (3.3, ["64", "128", "256", "512", "1,024", "2,048"]),
        (1.5, ["", "128", "", "512", "", "2,048"]),
        (0.6, ["", "", "256", "", "", "2,048"]),
    ):
        with figure_style():
            figure = Figure(figsize=(width, 2))
            axis = figure.add_axes((0, 0.2, 1, 0.8))
            scale_lengths(axis, (64, 128, 256, 512, 1024, 2048), width)
            figure.draw_without_rendering()
            shown = [text for text in axis.get_xticklabels() if text.get_text()]
            assert [text.get_text() for text in axis.get_xticklabels()] == labels
            boxes = [text.get_window_extent() for text in shown]
        assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


def test_perplexities_have_round_ticks_whatever_their_range():
    for low, high, ticks in (
        (25.75, 26.45, [25.8, 26.0, 26.2, 26.4]),
        (3.6, 34.0, [5, 10, 20, 30]),
        (4.0, 260.0, [5, 10, 20, 50, 100, 200]),
        (4.0, 26000.0, [10, 100, 1000, 10000]),
    ):
        axis = Figure().subplots()
        axis.set_yscale("log")
        axis.set_ylim(low, high)
        label_powers(axis.yaxis, low, high)
        shown = [tick for tick in axis.get_yticks() if low <= tick <= high]
        assert shown == pytest.approx(ticks)


KINDS = ["trained", "pi", "ntk", "yarn", "llama3", "longrope", "rerope", "leaky_rerope", "abf"]


def test_common_kinds_have_their_colour_in_every_figure_and_others_different_ones():
    known = {"trained": "#000000", "pi": "#E69F00", "ntk": "#0072B2", "yarn": "#D55E00"}
    for others in ([], KINDS, [f"new-{i}" for i in range(20)]):
        styles = assign_styles({kind: kind for kind in (*others, *known)})
        assert {kind: styles[kind].color for kind in known} == known
    for count in range(1, len(KINDS) + 1):
        styles = assign_styles({kind: kind for kind in KINDS[:count]})
        assert list(styles) == KINDS[:count]
        assert len({(style.color, style.linestyle) for style in styles.values()}) == count


def test_a_type_has_one_colour_and_dash_whatever_else_is_in_the_figure():
    types = [*STRATEGIES, *MAPS]
    together = assign_styles({kind: kind for kind in types})
    looks = [(together[kind].color, together[kind].linestyle) for kind in types]
    assert len(set(looks)) == len(types)
    for kind, look in zip(types, looks, strict=True):
        own = assign_styles({"trained": "trained", "x": kind, "pi-2": "pi"})["x"]
        assert (own.color, own.linestyle) == look
    assert together["yarn"].color == together["dynamic_yarn"].color
    assert {together[kind].linestyle for kind in MAPS} == {"--"}
    # but a colour that the user chose
    chosen = assign_styles({"a": "pi", "b": "yarn"}, {"a": "#123456"})
    assert [style.color for style in chosen.values()] == ["#123456", "#D55E00"]


def test_curves_of_one_kind_have_different_colours_and_markers():
    names = ["trained", "yarn-2", "pi-2", "yarn-4", "yarn-8", "yarn-auto"]
    kinds = {name: name.split("-")[0] for name in names}
    colours = {name: style.color for name, style in assign_styles(kinds).items()}
    assert len(set(colours.values())) == len(names)
    # the first of a kind has the kind's colour, and none of the others that of another kind
    assert [colours[name] for name in names[:3]] == ["#000000", "#D55E00", "#E69F00"]
    assert set(colours.values()) <= set(OKABE_ITO) - {"#0072B2"}
    # colours are shared only if there are more curves; not black, which stands for `trained`
    count = len(PALETTE) - 1
    styles = list(assign_styles({f"yarn-{i}": "yarn" for i in range(count + 3)}).values())
    assert len({style.color for style in styles[:count]}) == count
    assert {style.color for style in styles[count:]} == {"#D55E00"}
    assert len({style.marker for style in styles[:8]}) == 8
    assert len(set(PALETTE)) == len(PALETTE) == 14
