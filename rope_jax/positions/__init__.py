"""Position methods that are not a scaling: encodings and maps.

An encoding says what tells a model the order of its tokens: rotation, something added to the
embeddings, or a bias on the scores. A map says at which relative position a query sees a key. Their
params reach the jitted model as arrays; what changes the program (`BandMask`, the functions of an
encoding) is static.
"""
