"""Position methods that are not a scaling: encodings and maps.

An encoding says what tells a model the order of its tokens, a map at which relative position a
query sees a key. Their params reach the jitted model as arrays; what changes the program (a
`BandMask`, the functions of an encoding) is static.
"""
