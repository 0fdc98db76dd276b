"""Position methods that are not a scaling: encodings and maps.

A scaling says how fast each pair of dimensions turns. An encoding says what tells a model the order
of its tokens in the first place: rotation, something added to the embeddings, or a bias on the
scores. A map says which relative position a query sees a key at. Frozen settings are in
`rope_jax.positions.encodings` and `rope_jax.positions.maps`; their numbers reach the jitted model
as arrays, and what changes the program (`BandMask`, the functions of an encoding) is static.
"""
