"""Figures as the scripts save them."""

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def saved_figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect every figure that is saved, and save it all the same."""
    save, figures = Figure.savefig, []

    def keep(figure, path, **settings):
        figures.append(figure)
        save(figure, path, **settings)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures
