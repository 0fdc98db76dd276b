"""`BandMask`: which keys a band holds."""

import numpy as np
import pytest

from rope_jax.positions.mask import BandMask


@pytest.mark.parametrize("chunks_back", [(0, 0), (1, 1), (2, None), (0, None), (1, 3)])
def test_positions_are_ignored_only_where_every_pair_obeys_them(chunks_back):
    band = BandMask(chunk=5, chunks_back=chunks_back)
    query, distance = np.arange(200, 205), np.arange(100)
    # whether all queries see the key at each distance
    obeyed = np.array([band.by_document_position(query[i : i + 1], query[i] - distance)[0]
                       for i in range(5)]).all(0)  # fmt: skip
    ignored = 0
    for nearest in range(30):
        for farthest in (*range(nearest, 40), None):
            needed = band.needs_document_positions(nearest, farthest)
            assert needed or obeyed[nearest : None if farthest is None else farthest + 1].all()
            ignored += not needed
    assert ignored


def test_sinks_go_by_position_at_every_distance():
    assert BandMask(first=4).needs_document_positions(10_000, None)
    assert not BandMask(nearest=4, beyond=8).needs_document_positions(0, None)


def test_the_visible_positions_are_an_interval():
    places = np.arange(40)
    distance = places[:, None] - places[None]
    for band in (
        BandMask(),
        BandMask(beyond=1),
        BandMask(nearest=2, beyond=9),
        BandMask(nearest=6, first=4),
        BandMask(chunk=5, chunks_back=(0, 0)),
        BandMask(chunk=5, chunks_back=(2, None)),
        BandMask(nearest=2, beyond=11, chunk=4, chunks_back=(1, 2)),
    ):
        wanted = band.by_distance(distance) & band.by_document_position(places, places)
        first, last = (x[:, None] for x in band.interval(places))
        np.testing.assert_array_equal(
            (places >= first) & (places <= last), wanted, err_msg=str(band)
        )
