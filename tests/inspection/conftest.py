"""Fixtures that call a script and return what it shows."""

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder that the scripts run in; the terminal has 110 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    return tmp_path


@pytest.fixture
def show(folder, capsys, monkeypatch):
    """Return a function that calls a script and returns its output and its figure."""
    save = Figure.savefig

    def show(script, *words, pixels=False):
        figures = []

        def keep(figure, path, **settings):
            # layout takes most of the time, and most tests only look at what would be drawn
            save(figure, path, **settings) if pixels and not figures else path.touch()
            figures.append(figure)

        monkeypatch.setattr(Figure, "savefig", keep)
        script(list(words))
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 110
        return out, figures[0]

    return show
