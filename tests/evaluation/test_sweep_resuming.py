"""A sweep that was interrupted: what is measured again and what is not."""

import jax
import numpy as np
import pytest

from tests.evaluation.test_sweep_batches import gib
from tests.evaluation.toy_model import DOCUMENTS, cheap_nll, of_last, run

# Interrupted


@pytest.mark.parametrize("tokens", [8, 200])  # one reading at a time, and several in a batch
def test_an_interrupted_sweep_resumes_where_it_stopped(tokens):
    entries = ["trained", {"type": "pi", "factor": "auto"}, {"type": "ntk", "factor": 2}]
    settings = {"protocols": ["same_tokens", "per_position"], "memory_gib": gib(tokens)}
    settings["nll_of_last"] = of_last(cheap_nll)
    whole = run(entries, nll=cheap_nll, **settings)

    class Interrupting(dict):
        def __setitem__(self, key, value):
            if len(self) == 7:
                raise KeyboardInterrupt
            super().__setitem__(key, value)

    journal = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        run(entries, nll=cheap_nll, journal=journal, **settings)
    kept = dict(journal)
    assert len(kept) == 7
    read = []

    def nll(params, tokens, rotary):
        jax.debug.callback(lambda: read.append(tokens.shape[1] - 1))
        return cheap_nll(params, tokens, rotary)

    settings["nll_of_last"] = of_last(nll)
    result = run(entries, nll=nll, journal=kept, **settings)
    jax.effects_barrier()
    for a, b in zip(whole.measurements, result.measurements, strict=True):
        np.testing.assert_array_equal(a.sums[:2], b.sums[:2])
        assert (a.entry, a.length, a.targets) == (b.entry, b.length, b.targets)
    # a part was reused; with a complete journal nothing is read
    in_all = len(read)
    read.clear()
    run(entries, nll=nll, journal={}, **settings)
    jax.effects_barrier()
    assert 0 < in_all < len(read)
    read.clear()
    run(entries, nll=nll, journal=kept, **settings)
    jax.effects_barrier()
    assert read == []


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"targets": 3},
        {"bos": "every_window"},
        {"max_blocks": 1},
        {"documents": DOCUMENTS[::-1]},
        {"scalings": [{"type": "pi", "factor": 5}]},
        {"protocols": ["sliding"], "stride": 3},
        {"lengths": [8, 16, 64], "protocols": ["per_position"]},
    ],
    ids=lambda change: "-".join(change),
)
def test_measurements_with_other_settings_are_not_reused(change):
    journal = {}
    base = {"nll": cheap_nll, "scalings": [{"type": "pi", "factor": 4}], "journal": journal}
    for protocol, stride in (("same_tokens", None), ("sliding", 4), ("per_position", None)):
        run(**base, protocols=[protocol], stride=stride)
    before = set(journal)
    found = run(**(base | change))
    fresh = run(**(base | change | {"journal": {}}))
    assert set(journal) - before
    for a, b in zip(found.measurements, fresh.measurements, strict=True):
        np.testing.assert_array_equal(a.sums[:2], b.sums[:2])


def test_only_measurements_of_this_sweep_count_as_reused():
    journal, told = {}, []
    settings = {"nll": cheap_nll, "journal": journal, "resuming": lambda *call: told.append(call)}
    run(["trained", {"type": "ntk", "factor": 2}], **settings)
    assert told == []  # an empty journal
    # `none` is `trained` here: one entry of the journal serves both. The rest are of ntk.
    run(["trained", "none", {"type": "pi", "factor": 2}], **settings)
    assert told == [(4, 8)]
    run([{"type": "pi", "factor": 3}], **settings)
    assert told == [(4, 8), (1, 5)]  # the baseline, `trained` at the window
