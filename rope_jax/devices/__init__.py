"""Devices and processes: the mesh, several processes as one run, the memory and speed of devices."""
