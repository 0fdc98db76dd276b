"""One name for the curve with each run's own scaling, which sweeps call differently."""

from collections.abc import Sequence
from dataclasses import replace

from rope_jax.comparison.sweeps import PointKey, Sweep
from rope_jax.protocols import BASELINE

TRAINED = "trained"


def align_baselines(sweeps: Sequence[Sweep]) -> list[Sweep]:
    """Return the sweeps with one name for the curve of each model's own scaling.

    A sweep of `none`, on a model that was trained without scaling, holds what another sweep calls
    `trained`. Its curve is called `trained` here if any sweep that has such a curve has none of the
    other name, so that the two can be compared.
    """
    with_trained = [sweep for sweep in sweeps if TRAINED in sweep.settings]
    aligned = []
    for sweep in sweeps:
        names = {sweep.baselines.get(step) for step in sweep.windows}
        (name,) = names if len(names) == 1 else (None,)
        lacking = [other for other in with_trained if name not in other.settings]
        if name is None or TRAINED in sweep.settings or not lacking:
            aligned.append(sweep)
        else:
            aligned.append(_renamed(sweep, name, lacking[0].settings[TRAINED]))
    return aligned


def _renamed(sweep: Sweep, name: str, settings: str) -> Sweep:
    """Return a sweep with one curve renamed to `trained`, whose settings are given."""

    def new(old: str) -> str:
        return TRAINED if old == name else old

    # Where `trained` at the window was measured as well, it equals the curve.
    at_window = {key: sums for key, sums in sweep.sums.items() if key.name == TRAINED}
    return replace(
        sweep,
        rows=[row._replace(name=new(row.name)) for row in sweep.rows],
        sums={key._replace(name=new(key.name)): sums for key, sums in sweep.sums.items()}
        | at_window,
        settings={new(old): value for old, value in sweep.settings.items()} | {TRAINED: settings},
        baselines=dict.fromkeys(sweep.baselines, TRAINED),
        renamed=name,
    )


def truncation_key(sweep: Sweep, step: int) -> PointKey:
    """Return the key of what truncation costs: the loss of the own scaling at the window.

    A sweep measures it as `trained`, or as a curve with the same scaling.
    """
    key = PointKey(TRAINED, BASELINE, sweep.windows[step], step)
    name = sweep.baselines.get(step)
    return key if key in sweep.sums or name is None else key._replace(name=name)
