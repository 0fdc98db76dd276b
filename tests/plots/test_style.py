"""Colours and markers that readers can tell apart."""

from rope_jax.plots.style import OKABE_ITO, PALETTE, assign_styles, distinct_styles

KINDS = ["trained", "pi", "ntk", "yarn", "llama3", "longrope", "rerope", "leaky_rerope", "abf"]


def test_common_kinds_have_their_colour_in_every_figure_and_others_different_ones():
    known = {"trained": "#000000", "pi": "#E69F00", "ntk": "#0072B2", "yarn": "#D55E00"}
    for others in ([], KINDS, [f"new-{i}" for i in range(20)]):
        styles = assign_styles({kind: kind for kind in (*others, *known)})
        assert {kind: styles[kind].color for kind in known} == known
    # rerope and longrope prefer the same one
    for count in range(1, len(KINDS) + 1):
        styles = assign_styles({kind: kind for kind in KINDS[:count]})
        assert list(styles) == KINDS[:count]
        assert len({style.color for style in styles.values()}) == count
    # up to six are Okabe and Ito's, and `trained` alone is black
    six = ["llama3", "longrope", "rerope", "leaky_rerope", "abf", "streaming"]
    styles = assign_styles({kind: kind for kind in six})
    assert {style.color for style in styles.values()} == set(OKABE_ITO[1:])


def test_curves_of_one_kind_have_different_colours_and_markers():
    names = ["trained", "yarn-2", "pi-2", "yarn-4", "yarn-8", "yarn-auto"]
    kinds = {name: name.split("-")[0] for name in names}
    colours = {name: style.color for name, style in assign_styles(kinds).items()}
    assert len(set(colours.values())) == len(names)
    # the first of a kind has the kind's colour, and none of the others that of another kind
    assert [colours[name] for name in names[:3]] == ["#000000", "#D55E00", "#E69F00"]
    assert set(colours.values()) <= set(OKABE_ITO) - {"#0072B2"}
    # a dynamic type has its family's colour only in a figure without the family
    family = assign_styles({"yarn": "yarn", "dynamic_yarn": "dynamic_yarn"})
    assert family["yarn"].color == "#D55E00" != family["dynamic_yarn"].color
    # colours are shared only if there are more curves; not black, which stands for `trained`
    count = len(PALETTE) - 1
    styles = list(assign_styles({f"yarn-{i}": "yarn" for i in range(count + 3)}).values())
    assert len({style.color for style in styles[:count]}) == count
    assert {style.color for style in styles[count:]} == {"#D55E00"}
    assert len({style.marker for style in styles[:8]}) == 8
    groups = distinct_styles([f"g{i}" for i in range(14)])
    assert len({style.color for style in groups.values()}) == 14
