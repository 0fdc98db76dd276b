"""`BandMask`: which keys a band holds."""

import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.positions.mask import BandMask


@pytest.mark.parametrize("chunks_back", [(0, 0), (1, 1), (2, None), (0, None), (1, 3)])
def test_places_are_ignored_only_where_every_pair_obeys_them(chunks_back):
    band = BandMask(chunk=5, chunks_back=chunks_back)
    query = np.arange(200, 260)
    ignored = []
    for nearest in range(30):
        for farthest in (*range(nearest, 40), None):
            distances = np.arange(nearest, 100 if farthest is None else farthest + 1)
            obeyed = [
                band.by_document_position(query[i : i + 1], query[i] - distances).all()
                for i in range(60)
            ]
            assert band.needs_document_positions(nearest, farthest) or all(obeyed)
            if not band.needs_document_positions(nearest, farthest):
                ignored.append((nearest, farthest))
    assert ignored


def test_sinks_go_by_place_at_every_distance():
    assert BandMask(first=4).needs_document_positions(10_000, None)
    assert not BandMask(nearest=4, beyond=8).needs_document_positions(0, None)


@pytest.mark.parametrize(
    "band",
    [
        BandMask(),
        BandMask(beyond=1),
        BandMask(nearest=3),
        BandMask(nearest=2, beyond=9),
        BandMask(first=4),
        BandMask(nearest=6, first=4),
        BandMask(chunk=5, chunks_back=(0, 0)),
        BandMask(chunk=5, chunks_back=(1, 1)),
        BandMask(chunk=5, chunks_back=(2, None)),
        BandMask(nearest=2, beyond=11, chunk=4, chunks_back=(1, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_the_visible_places_are_an_interval(band, array):
    places = np.arange(40)
    distance = places[:, None] - places[None]
    wanted = band.by_distance(distance) & band.by_document_position(places, places)
    first, last = (np.asarray(x)[:, None] for x in band.interval(array(places)))
    np.testing.assert_array_equal((places >= first) & (places <= last), wanted)
